// The live panel: one row per rank. The kernel sends what has changed, and while a cell runs, every two seconds also what has not: if it
// falls silent, the page says so rather than show as true what may not be. Symbols and words carry the state; colours only repeat it.
const SILENT = 6; // seconds
const COLUMNS = ["rank", "", "what it does", "for", "memory", "sent", "last line"];
const STYLE = `
.course-panel { font: var(--jp-ui-font-size1, 13px) / 1.5 var(--jp-ui-font-family, sans-serif); color: var(--jp-ui-font-color1, #222);
  container-type: inline-size; overflow-x: auto; padding: 0.2em 0; }
.course-panel .head { display: flex; flex-wrap: wrap; gap: 0 1em; font-weight: 600; }
.course-panel .note { font-weight: 400; }
.course-panel table { border-collapse: collapse; table-layout: fixed; width: 100%; min-width: 34em; font-size: inherit; }
.course-panel th, .course-panel td { padding: 0.15em 0.6em 0.15em 0; text-align: left; white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; border: none; background: none; color: inherit; }
.course-panel th { font-weight: 400; color: var(--jp-ui-font-color2, #555); border-bottom: 1px solid var(--jp-border-color2, #ccc); }
.course-panel td.number, .course-panel th.number { text-align: right; font-variant-numeric: tabular-nums; }
.course-panel td.line { font-family: var(--jp-code-font-family, monospace); }
.course-panel td.symbol { text-align: center; font-weight: 700; border-radius: 0.3em; padding: 0; }
.course-panel tr.computing td.symbol { background: #0072b2; color: white; }
.course-panel tr.waits td.symbol { background: #e69f00; color: #222; }
.course-panel tr.silent td.symbol { background: #999; color: #222; }
.course-panel tr.raised td.symbol, .course-panel tr.gone td.symbol { background: #a00018; color: white; }
.course-panel tr.unknown td.symbol { background: #cc79a7; color: #222; }
.course-panel tr.waits td.what, .course-panel tr.raised td.what, .course-panel tr.gone td.what { font-weight: 600; }
.course-panel.silent table { opacity: 0.5; }
.course-panel col.rank { width: 3em; } .course-panel col.symbol { width: 1.8em; } .course-panel col.age { width: 4.5em; }
.course-panel col.memory { width: 6em; } .course-panel col.sent { width: 5.5em; } .course-panel col.line { width: 26%; }
.course-panel td.symbol + td { padding-left: 0.6em; }
.course-panel .line { padding-left: 0.8em; }
@container (max-width: 46em) { .course-panel .memory, .course-panel .sent { display: none; } }`;
const KINDS = ["rank number", "symbol", "what", "age number", "memory number", "sent number", "line"];

function age(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const whole = Math.floor(seconds);
  return whole < 60 ? `${whole} s` : whole < 3600 ? `${Math.floor(whole / 60)} min` : `${Math.floor(whole / 3600)} h`;
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = element.title = text;
}

function make(name, className, parent) {
  const element = document.createElement(name);
  element.className = className;
  return parent.appendChild(element);
}

let views = 0, heard = performance.now(); // of this model on this page, and when news came last

function initialize({ model }) {
  heard = performance.now();
  model.on("change:data", () => {
    heard = performance.now();
  });
}

function count(model, by) {
  views += by;
  model.set("views", views);
  model.save_changes();
}

function render({ model, el }) {
  const root = make("div", "course-panel", el), style = make("style", "", root);
  style.textContent = STYLE;
  const top = make("div", "head", root), head = make("span", "", top), note = make("span", "note", top);
  const table = make("table", "", root), group = make("colgroup", "", table), names = make("tr", "", make("thead", "", table));
  const body = make("tbody", "", table);
  COLUMNS.forEach((name, i) => {
    make("col", KINDS[i].split(" ")[0], group);
    const cell = make("th", KINDS[i], names);
    cell.scope = "col";
    cell.textContent = name;
  });
  const kernel = model.widget_manager?.kernel; // as JupyterLab has it
  const outOfReach = () => kernel && (kernel.isDisposed || kernel.connectionStatus === "disconnected" || !model.widget_manager.kernel);
  let lost = false;

  function draw() {
    const { state: [title, said, rows], ages, running, ended } = model.get("data");
    const passed = (performance.now() - heard) / 1000, off = lost || outOfReach();
    const silent = off || (!ended && running && passed > SILENT); // a kernel that ends in good order stops the ranks first
    root.classList.toggle("silent", silent);
    set(head, title);
    set(note, !silent ? said : off ? "The kernel has ended, or is out of reach: this is what was last seen."
      : `No news from the kernel for ${age(passed)}: this is what was last seen.`);
    table.style.display = rows.length ? "" : "none";
    while (body.rows.length > rows.length) body.lastChild.remove();
    rows.forEach(([rank, symbol, kind, text, , held, sent, line], i) => {
      let row = body.rows[i];
      if (!row) {
        row = make("tr", "", body);
        for (const one of KINDS) make("td", one, row);
      }
      if (row.className !== kind) row.className = kind;
      const since = ages[i] === null || silent || ended ? ages[i] : ages[i] + passed;
      [`${rank}`, symbol, text, age(since), held, sent, line].forEach((value, j) => set(row.cells[j], value));
    });
  }

  const changed = (_, status) => {
    lost ||= ["restarting", "autorestarting", "terminating", "dead"].includes(status); // the next kernel knows nothing of this panel
    draw();
  };
  const ended = () => {
    lost = true;
    draw();
  };
  const hidden = () => {
    model.set("views", 0);
    model.save_changes();
  };
  const counted = () => {
    if (!model.get("views") && views) count(model, 0); // another page was closed, not this one
  };
  model.on("change:data", draw);
  model.on("change:views", counted);
  kernel?.statusChanged?.connect(changed);
  kernel?.disposed?.connect(ended);
  addEventListener("pagehide", hidden);
  const clock = setInterval(draw, 1000);
  count(model, 1);
  draw();
  return () => {
    clearInterval(clock);
    model.off("change:data", draw);
    model.off("change:views", counted);
    kernel?.statusChanged?.disconnect(changed);
    removeEventListener("pagehide", hidden);
    kernel?.disposed?.disconnect(ended);
    if (lost || outOfReach()) ended();
    else count(model, -1);
  };
}

export default { initialize, render };
