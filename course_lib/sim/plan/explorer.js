// Sliders over a table of steps. All numbers and sentences come from the table: what is not in it is not shown.
const STYLE = `
.course-plan { container-type: inline-size; line-height: 1.45; color: var(--jp-ui-font-color1, inherit);
  font-family: var(--jp-ui-font-family, system-ui, sans-serif); --line: color-mix(in srgb, currentColor 25%, transparent); }
.course-plan .columns { display: grid; grid-template-columns: minmax(17em, 2fr) minmax(20em, 3fr); gap: 0.5em 2em; }
.course-plan .title { font-weight: 600; }
.course-plan fieldset { border: 0; border-top: 1px solid var(--line); margin: 0 0 0.6em; padding: 0.3em 0 0; min-width: 0; }
.course-plan legend { padding: 0 0.6em 0 0; font-weight: 600; }
.course-plan .slider { display: grid; grid-template-columns: 4.6em 1fr 11.5em; gap: 0.6em; align-items: center; }
.course-plan input[type=range] { width: 100%; min-width: 0; margin: 0.3em 0; accent-color: #0072b2; }
.course-plan output { font-variant-numeric: tabular-nums; }
.course-plan .choice { display: flex; gap: 0.4em; align-items: baseline; padding: 0.1em 0; }
.course-plan .choice input { margin: 0; flex: none; }
.course-plan button { font: inherit; margin: 0 0.5em 0.4em 0; padding: 0.2em 0.7em; cursor: pointer; color: inherit; background: none;
  border: 1px solid currentColor; border-radius: 0.3em; }
.course-plan button:disabled { opacity: 0.5; cursor: default; }
.course-plan .note { font-size: 0.9em; opacity: 0.85; margin: 0 0 0.5em; }
.course-plan .verdict { margin: 0 0 0.6em; padding: 0.4em 0.7em; border-left: 0.35em solid #0072b2; min-height: 4.4em; box-sizing: border-box; }
.course-plan .verdict.not { border-left-color: #d55e00; border-left-style: double; }
.course-plan .tiles { display: flex; flex-wrap: wrap; gap: 0.2em 1.6em; margin: 0 0 0.4em; }
.course-plan .tiles > span { display: flex; flex-direction: column-reverse; }
.course-plan .tiles > span > span { font-size: 0.85em; opacity: 0.85; }
.course-plan .tiles b { font-size: 1.25em; font-weight: 600; font-variant-numeric: tabular-nums; }
.course-plan .bar { position: relative; display: flex; height: 1.6em; margin: 0.2em 0 0.3em; border: 1px solid var(--line); box-sizing: border-box; }
.course-plan .bar > span { box-sizing: border-box; flex: none; }
.course-plan .limit { position: absolute; top: -0.35em; bottom: -0.35em; border-left: 2px dashed currentColor; }
.course-plan table { border-collapse: collapse; font-size: 0.92em; margin: 0 0 0.8em; width: 100%; }
.course-plan th, .course-plan td { font-weight: 400; text-align: left; padding: 0.05em 0.8em 0.05em 0; border: 0; background: none; }
.course-plan td { text-align: right; width: 6em; font-variant-numeric: tabular-nums; white-space: nowrap; }
.course-plan .sample { display: inline-block; width: 1.4em; height: 0.8em; margin-right: 0.5em; box-sizing: border-box; }
.course-plan code { background: none; padding: 0; color: inherit; white-space: normal; font-size: 0.95em; }
@container (max-width: 46em) { .course-plan .columns { grid-template-columns: minmax(0, 1fr); } }
@container (max-width: 26em) { .course-plan .slider { grid-template-columns: 1fr auto; gap: 0 0.6em; }
  .course-plan .slider input { grid-row: 2; grid-column: 1 / 3; } }`;
let made = 0; // names of elements on a page with several of these

function make(name, className, parent, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return parent.appendChild(element);
}

/** A time with its unit, as course_lib.utils.wording has it. */
function time(seconds) {
  const [unit, step] = [["s", 1], ["ms", 1e-3], ["µs", 1e-6]].find(([, one]) => seconds >= one) || ["s", 1];
  return `${Number((seconds / step).toPrecision(4))} ${unit}`;
}

function percent(share) {
  return `${(100 * share).toFixed(1)}%`;
}

/** Whether a page with text of this color is dark. */
function isDark(color) {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  pen.fillStyle = color;
  pen.fillRect(0, 0, 1, 1);
  const [r, g, b] = pen.getImageData(0, 0, 1, 1).data;
  return r + g + b > 384;
}

function paint(element, [light, dark, pattern], isDark) {
  const color = isDark ? dark : light, paper = isDark ? "#111" : "#fff";
  const lines = (angle, ink) => `repeating-linear-gradient(${angle}deg, ${ink} 0 1.5px, transparent 1.5px 6px)`;
  const look = { "": color, "////": lines(135, color), "xx": `${lines(45, paper)}, ${lines(135, paper)}, ${color}` };
  element.style.background = look[pattern];
  element.style.border = pattern === "////" ? `1px solid ${color}` : "";
}

function slider(parent, name, { sizes, label, unit }, moved) {
  const row = make("div", "slider", parent), title = make("label", "", row, label), input = make("input", "", row);
  const output = make("output", "", row);
  input.type = "range";
  Object.assign(input, { min: 0, max: sizes.length - 1, step: 1, id: title.htmlFor = output.htmlFor = `course-plan-${name}-${made}` });
  input.dataset.axis = name;
  input.oninput = () => moved(name, sizes[input.value]);
  for (const kind of ["keydown", "pointerdown"]) input.addEventListener(kind, (event) => event.stopPropagation()); // not the notebook's
  return (size) => {
    input.value = sizes.indexOf(size);
    const text = `${size.toLocaleString("en")} ${size === 1 ? unit.replace(/s\b/, "") : unit}`;
    output.textContent = text;
    input.setAttribute("aria-valuetext", text);
  };
}

function breakdown(parent, caption, styles) {
  make("div", "title", parent, caption);
  const bar = make("div", "bar", parent), table = make("table", "", parent);
  table.setAttribute("aria-label", caption);
  bar.setAttribute("aria-hidden", "true"); // the table says the same
  const rows = Object.keys(styles).map((name) => {
    const row = make("tr", "", table), title = make("th", "", row), sample = make("span", "sample", title);
    title.scope = "row";
    title.append(name);
    return { piece: make("span", "", bar), sample, cells: [make("td", "", row), make("td", "", row)] };
  });
  return { bar, rows };
}

function render({ model, el }) {
  const data = model.get("data"), choice = {}, texts = data.texts, { axes } = data;
  made += 1;
  const root = make("div", "course-plan", el);
  make("style", "", root, STYLE);
  root.style.fontSize = `${14 * data.scale}px`;
  const columns = make("div", "columns", root), left = make("div", "", columns), right = make("div", "", columns), show = {};
  const fields = (title, names) => {
    const set = make("fieldset", "", left);
    make("legend", "", set, title);
    for (const name of names) if (axes[name].sizes.length > 1) show[name] = slider(set, name, axes[name], moved);
    return set;
  };
  fields("What is trained", ["batch", "sequence"]);
  const grid = fields(`Grid of ${data.devices.toLocaleString("en")} devices`, [...data.grid, "expert"]);
  make("p", "note", grid, `Data follows the other axes, and pipeline follows data, where that makes ${data.devices.toLocaleString("en")}.`
    + (show.expert ? " Expert takes its devices from tensor, context and data." : ""));
  const rest = make("fieldset", "", left), radios = {};
  make("legend", "", rest, "The rest");
  for (const [name, text] of Object.entries(data.rests)) {
    const line = make("label", "choice", rest), radio = radios[name] = make("input", "", line);
    Object.assign(radio, { type: "radio", name: `course-plan-rest-${made}`, value: name, onchange: () => moved("rest", name) });
    make("span", "", line, text);
  }
  const nearest = make("button", "", left, "Best for this batch and length"), fastest = make("button", "", left, "Most tokens a day");
  const verdict = make("p", "verdict", right), found = make("div", "", right), tiles = make("div", "tiles", found);
  verdict.setAttribute("role", "status");
  const tile = ["a step", "MFU", "bubble", "on the fullest device", "tokens a day"].map((name) => {
    const one = make("span", "", tiles);
    make("span", "", one, name);
    return make("b", "", one);
  });
  const times = breakdown(found, "Time of a step, the mean over its devices (the bubble is hatched)", data.parts);
  const held = breakdown(found, `Memory of the fullest device (dashed line: the ${data.memory} GiB that it has)`, data.kinds);
  const limit = make("span", "limit", held.bar), configuration = make("code", "", make("p", "", found, "Configuration: "));

  function moved(name, value) {
    choice[name] = value;
    const others = (own) => data.grid.filter((axis) => axis !== own).reduce((all, axis) => all * choice[axis], 1);
    const follows = name === "data" ? "pipeline" : "data";
    const size = data.devices / others(follows);
    if (data.grid.includes(name) && axes[follows].sizes.includes(size)) choice[follows] = size;
    draw();
  }

  function jump(key) {
    [...Object.keys(axes), "rest"].forEach((name, i) => (choice[name] = key[i]));
    draw();
  }

  function fill({ rows }, styles, values, whole, unit, dark) {
    const sum = values.reduce((a, b) => a + b, 0);
    Object.values(styles).forEach((style, i) => {
      const { piece, sample, cells } = rows[i];
      piece.style.width = `${(100 * values[i]) / whole}%`;
      piece.style.display = values[i] / whole < 5e-4 ? "none" : ""; // narrower than its border
      for (const element of [piece, sample]) paint(element, style, dark);
      cells[0].textContent = unit(values[i]);
      cells[1].textContent = percent(values[i] / sum);
    });
  }

  function draw() {
    const sizes = Object.keys(axes).map((name) => choice[name]), key = sizes.join(",");
    for (const name of Object.keys(show)) show[name](choice[name]);
    for (const name of Object.keys(radios)) radios[name].checked = choice.rest === name;
    const best = data.best[`${choice.batch},${choice.sequence}`], entry = data.entries[`${key},${choice.rest}`];
    nearest.disabled = !best;
    nearest.onclick = () => jump(best);
    found.hidden = !entry;
    verdict.classList.toggle("not", !entry || !entry[0]);
    if (!entry) {
      const why = [data.grid.map((name) => choice[name]).join(","), key, `${key},${choice.rest}`].find((one) => one in data.impossible);
      verdict.textContent = `✗ ${texts[data.impossible[why]]}`;
      return;
    }
    const [fits, step, utilisation, memory, tokens, chosen, limits, kinds, parts] = entry, dark = isDark(getComputedStyle(root).color);
    verdict.textContent = `${fits ? "✓" : "✗"} ${texts[limits]}`;
    const all = parts.reduce((a, b) => a + b, 0), waiting = parts[Object.keys(data.parts).indexOf(data.waiting)];
    [step, utilisation, percent(waiting / all), `${memory} of ${data.memory} GiB`, tokens].forEach((text, i) => (tile[i].textContent = text));
    configuration.textContent = texts[chosen];
    fill(times, data.parts, parts, all, time, dark);
    const whole = Math.max(data.memory, kinds.reduce((a, b) => a + b, 0)) * 1.02;
    fill(held, data.kinds, kinds, whole, (gib) => `${gib.toFixed(1)} GiB`, dark);
    limit.style.left = `${(100 * data.memory) / whole}%`;
    limit.title = `a device has ${data.memory} GiB`;
  }

  fastest.onclick = () => jump(data.fastest);
  jump(data.start);
  const themed = new MutationObserver(() => requestAnimationFrame(draw)), preferred = matchMedia("(prefers-color-scheme: dark)");
  for (const page of [document.documentElement, document.body])
    themed.observe(page, { attributeFilter: ["class", "data-theme", "data-jp-theme-light"] });
  preferred.addEventListener("change", draw);
  requestAnimationFrame(draw); // with the page's styles
  return () => {
    themed.disconnect();
    preferred.removeEventListener("change", draw);
  };
}

export default { render };
