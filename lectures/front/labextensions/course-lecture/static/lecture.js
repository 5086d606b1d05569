// Shows a notebook in JupyterLab as slides: the same notebook, the same kernel, one slide at a time.
//
// This is a prebuilt extension of JupyterLab, as written and not bundled: the server finds it through
// package.json, and `container` below is what JupyterLab asks for its plugins. See docs, "Extensions: prebuilt".
// Where a slide begins is in the cells' metadata: slideshow.slide_type, as nbconvert has it.
(() => {
  "use strict";

  const AT_KEYBOARD = ".cm-editor, input, textarea, select, [role=slider]"; // who has the focus there wants the arrows
  // The scale of the type, and how much of the screen's height a figure may take: what leaves room is larger. With less than 58,
  // its type gets too small for the last row (course_lib/plots/figures.py counts on that).
  const SIZES = [[1.6, 74], [1.45, 74], [1.3, 74], [1.15, 74], [1, 74], [1, 66], [1, 58]];
  const LONG = 3, SECONDS = "lecture_seconds"; // in a cell's metadata: how long it took when it last ran; from LONG on, the notes say so
  const HELP = "Next: → ↓ PgDn, back: ← ↑ PgUp, first and last: Home End. Run a cell: Shift-Enter. Change it: Enter, "
    + "then Esc. Stop what runs: i. Notes: n. The ranks: r. Dark screen: b or full stop. Slides off and on: Alt-R.";

  const RANKS = "course-panel", SILENT = 6; // the comm's name in course_lib/cluster/panel; seconds after which a cell's ranks are overdue

  /** A strip at the bottom of the slide: what each rank does, as the kernel says without being asked, also while a cell runs. */
  class Strip {
    constructor(sessionContext) {
      this.node = document.body.appendChild(document.createElement("div"));
      this.node.className = "lecture-strip";
      this.sessionContext = sessionContext;
      sessionContext.kernelChanged.connect((_, { newValue }) => this.listen(newValue));
      sessionContext.statusChanged.connect((_, status) => {
        if (/restarting|terminating|dead/.test(status)) this.take(null);
      });
      if (sessionContext.session?.kernel) this.listen(sessionContext.session.kernel);
      setInterval(() => this.draw(), 1000);
      this.take(null);
    }

    async listen(kernel) {
      if (!kernel) return this.take(null);
      const follow = comm => {
        comm.onMsg = message => this.take(message.content.data);
      };
      kernel.registerCommTarget(RANKS, follow);
      const known = await kernel.requestCommInfo({ target_name: RANKS }); // when the page was loaded again
      for (const id of Object.keys(known.content.comms ?? {})) {
        if (kernel.hasComm(id)) continue;
        const comm = kernel.createComm(RANKS, id);
        follow(comm);
        comm.send({}); // asks what is true now
      }
    }

    take(content) {
      this.content = content;
      this.heard = performance.now();
      this.draw();
    }

    draw() {
      if (!document.body.classList.contains("lecture-ranks")) return;
      const { state: [head, note, rows] = ["No ranks have been started yet.", "", []], ages = [], running, ended } = this.content ?? {};
      const passed = (performance.now() - this.heard) / 1000, silent = running && passed > SILENT;
      const cells = rows.map(([rank, symbol, kind, text, short], i) => {
        const cell = document.createElement("div"), since = ages[i] === null || ended || silent ? ages[i] : Math.floor(ages[i] + passed);
        const time = since === null ? "" : since < 60 ? `${Math.floor(since)} s` : `${Math.floor(since / 60)} min`;
        cell.className = kind;
        cell.title = text;
        cell.append(Object.assign(document.createElement("b"), { textContent: `${symbol} rank ${rank} ` }),
          Object.assign(document.createElement("small"), { textContent: time }), Object.assign(document.createElement("span"), { textContent: short }));
        return cell;
      });
      const said = silent ? "No news from the kernel: this is what was last seen." : rows.length ? note : [head, note].join(" ");
      if (said) cells.push(Object.assign(document.createElement("p"), { textContent: said }));
      this.node.classList.toggle("lecture-silent", silent);
      this.node.replaceChildren(...cells);
    }
  }

  /** The slides of a notebook: lists of steps, each a list of cells that come together. */
  function slidesOf(cells) {
    const slides = [];
    let notes = [];
    for (const cell of cells) {
      const type = cell.model.getMetadata("slideshow")?.slide_type ?? "-";
      if (type === "notes") {
        notes.push(cell);
      } else if (type === "skip") {
        continue;
      } else if (type === "slide" || type === "subslide" || !slides.length) {
        slides.push({ steps: [[cell]], notes: (notes = []) });
      } else if (type === "fragment") {
        slides.at(-1).steps.push([cell]);
      } else {
        slides.at(-1).steps.at(-1).push(cell);
      }
    }
    const picture = cells.find(cell => cell.model.getMetadata("course")?.picture); // it is on the title's slide, too
    if (picture && !slides[0].steps.flat().includes(picture)) slides[0].steps.at(-1).push(picture);
    return slides;
  }

  class Talk {
    constructor(panel, actions) {
      this.panel = panel;
      this.notebook = panel.content;
      this.actions = actions;
      this.run = new Set(); // cells that have been run since the kernel started, or the page was loaded
      this.turn = Promise.resolve(); // what was asked for is run in the order in which it was asked for
      this.slides = slidesOf(this.notebook.widgets);
      this.key = `lecture ${panel.context.path}`;
      [this.slide, this.step] = JSON.parse(sessionStorage.getItem(this.key) ?? "[0, 0]");
      if (this.slide >= this.slides.length) [this.slide, this.step] = [0, 0];
      this.corner = document.body.appendChild(document.createElement("div"));
      this.corner.className = "lecture-corner";
      this.corner.title = HELP;
      this.strip = new Strip(panel.sessionContext);
      panel.sessionContext.statusChanged.connect((_, status) => {
        document.body.classList.toggle("lecture-busy", status === "busy");
        if (status === "restarting" || status === "autorestarting") this.run.clear();
      });
      actions.executed.connect((_, { notebook, cell, success }) => {
        if (notebook !== this.notebook || cell.model.executionCount == null) return; // null: no kernel has seen it
        cell.node.classList.add("lecture-ran");
        cell.node.classList.toggle("lecture-failed", !success);
        this.run.add(cell);
      });
      this.notebook.model.cells.changed.connect(() => {
        this.slides = slidesOf(this.notebook.widgets);
        this.mark();
      });
      document.addEventListener("keydown", event => this.pressed(event), true);
      this.on(true);
    }

    on(yes) {
      document.body.classList.toggle("lecture", yes);
      this.panel.node.classList.toggle("lecture-panel", yes);
      if (yes) this.show(this.slide, this.step);
      else requestAnimationFrame(() => this.notebook.activeCell?.node.scrollIntoView({ block: "center" }));
    }

    /** Show a slide up to one of its steps. */
    show(slide, step) {
      const moved = slide !== this.slide;
      this.slide = Math.min(Math.max(slide, 0), this.slides.length - 1);
      const { steps } = this.slides[this.slide];
      this.step = Math.min(Math.max(step, 0), steps.length - 1);
      sessionStorage.setItem(this.key, JSON.stringify([this.slide, this.step]));
      const picture = this.slide ? null : steps.flat().find(cell => cell.model.getMetadata("course")?.picture);
      if (this.folded && this.folded !== picture) this.folded.inputHidden = this.folded = false;
      if (picture && !picture.inputHidden) (this.folded = picture).inputHidden = true; // its code is on its own slide
      const seen = this.mark(), code = seen.filter(cell => cell.model.type === "code");
      const next = code.find(cell => !this.run.has(cell)) ?? code.at(-1) ?? seen[0];
      this.notebook.deselectAll();
      this.notebook.activeCellIndex = this.notebook.widgets.indexOf(next);
      this.notebook.mode = "command";
      this.notebook.node.focus({ preventScroll: true });
      this.fit(SIZES);
      if (moved) {
        this.scroller.scrollTop = 0;
        this.began ??= Date.now(); // the clock of the notes
      }
      this.count();
      this.tell();
    }

    /** Say where the talk is, and how long the cells that run now took the last time. */
    count(running = []) {
      const seconds = running.reduce((sum, cell) => sum + (cell.model.getMetadata(SECONDS) ?? 0), 0);
      const wait = seconds >= LONG ? `about ${Math.round(seconds)} s, ` : "";
      this.corner.textContent = `${wait}${this.slide + 1} / ${this.slides.length}`;
    }

    /** Only cells of this slide, up to its step, are to be seen; those. */
    mark() {
      this.slide = Math.min(this.slide, this.slides.length - 1);
      const seen = this.slides[this.slide].steps.slice(0, this.step + 1).flat();
      for (const cell of this.notebook.widgets) cell.node.classList.toggle("lecture-off", !seen.includes(cell));
      return seen;
    }

    get scroller() {
      return this.panel.node.querySelector(".jp-WindowedPanel-outer") ?? this.notebook.node;
    }

    /** Take the first of these sizes with which all of the slide is to be seen, or the last; then the title shows no text output. */
    fit(sizes) {
      document.body.classList.remove("lecture-tight");
      for (this.size of sizes) {
        document.body.style.setProperty("--lecture-scale", this.size[0]);
        document.body.style.setProperty("--lecture-figure", `${this.size[1]}vh`);
        const { scrollHeight, clientHeight } = this.scroller;
        const boxes = ".jp-Cell:not(.lecture-off) .cm-scroller, .jp-Cell:not(.lecture-off) .jp-RenderedMarkdown";
        const wide = [...this.scroller.querySelectorAll(boxes)];
        const high = [...this.scroller.querySelectorAll(".jp-Cell:not(.lecture-off) .jp-OutputArea:has(img)")]; // they scroll by themselves
        if (scrollHeight <= clientHeight + 1 && wide.every(box => box.scrollWidth <= box.clientWidth + 1)
          && high.every(box => box.scrollHeight <= box.clientHeight + 1)) return;
      }
      document.body.classList.toggle("lecture-tight", !this.slide && this.scroller.querySelector(".jp-Cell:not(.lecture-off) img") !== null);
    }

    go(by) {
      const { steps } = this.slides[this.slide];
      if (by > 0 && this.step + 1 < steps.length) return this.show(this.slide, this.step + 1);
      if (by < 0 && this.step > 0) return this.show(this.slide, this.step - 1);
      const to = this.slide + by;
      if (to >= 0 && to < this.slides.length) this.show(to, by > 0 ? 0 : this.slides[to].steps.length - 1);
    }

    /** Whether the slide scrolls further up or down; if so, scroll. */
    scrolls(by) {
      const outer = this.scroller, left = outer.scrollHeight - outer.clientHeight - outer.scrollTop;
      if (by > 0 ? left < 2 : outer.scrollTop < 2) return false;
      outer.scrollBy({ top: by * 0.5 * outer.clientHeight });
      return true;
    }

    pressed(event) {
      const alone = !event.ctrlKey && !event.metaKey && !event.altKey;
      if (event.altKey && event.code === "KeyR") this.on(!document.body.classList.contains("lecture"));
      else if (!document.body.classList.contains("lecture") || document.querySelector(".jp-Dialog")) return;
      else if (event.key === "Enter" && event.shiftKey && alone) this.execute();
      else if (!alone || event.shiftKey) return;
      else if (event.key === "PageDown") this.go(1);
      else if (event.key === "PageUp") this.go(-1);
      else if (document.activeElement?.closest(AT_KEYBOARD)) return;
      else if (event.key === "ArrowRight" || event.key === " ") this.go(1);
      else if (event.key === "ArrowLeft") this.go(-1);
      else if (event.key === "ArrowDown") this.scrolls(1) || this.go(1);
      else if (event.key === "ArrowUp") this.scrolls(-1) || this.go(-1);
      else if (event.key === "Home") this.show(0, 0);
      else if (event.key === "End") this.show(this.slides.length - 1, 0);
      else if (event.key === "b" || event.key === ".") document.body.classList.toggle("lecture-dark");
      else if (event.key === "n") this.openNotes();
      else if (event.key === "r") this.ranks();
      else if (event.key === "i") this.panel.sessionContext.session?.kernel?.interrupt();
      else if (event.key === "Enter") this.edit();
      else if (event.key.length > 1) return;
      event.preventDefault();
      event.stopImmediatePropagation();
    }

    /** Show what each rank does, or no longer. */
    ranks() {
      document.body.classList.toggle("lecture-ranks");
      this.strip.draw();
      this.fit(SIZES);
    }

    /** Write in the cell, also if it is folded. */
    edit() {
      const cell = this.notebook.activeCell;
      if (cell?.model.type !== "code") return;
      cell.inputHidden = false;
      this.notebook.mode = "edit";
      cell.editor?.focus();
    }

    /** Run the cell, after all before it that have not been run: it may need them, also those that no slide shows. */
    execute() {
      const cell = this.notebook.activeCell;
      if (cell?.model.type !== "code" || cell.node.classList.contains("lecture-runs")) return;
      cell.node.classList.add("lecture-runs");
      this.turn = this.turn.then(() => this.runUpTo(cell)).catch(console.error);
    }

    async runUpTo(last) {
      const { widgets } = this.notebook;
      const needed = widgets.slice(0, widgets.indexOf(last)).filter(cell =>
        cell.model.type === "code" && !this.run.has(cell)
        && !cell.model.getMetadata("tags")?.includes("raises-exception")); // that is for its own slide
      const cells = [...needed, last];
      for (const cell of cells) cell.node.classList.add("lecture-runs");
      const slide = this.slide;
      this.count(cells);
      try {
        const { sessionContext } = this.panel;
        await sessionContext.ready;
        await sessionContext.session?.kernel?.info; // what is sent before the kernel answers is lost without a word
        for (const cell of cells) {
          const began = Date.now(), fine = await this.actions.runCells(this.notebook, [cell], sessionContext);
          if (fine) cell.model.setMetadata(SECONDS, (Date.now() - began) / 1000);
          cell.node.classList.remove("lecture-runs");
          if (!fine && cell !== last) {
            cell.node.classList.remove("lecture-off"); // an error that nobody sees helps nobody
            this.run.delete(cell); // it is still needed
            break;
          }
        }
      } finally {
        for (const cell of cells) cell.node.classList.remove("lecture-runs");
        this.count();
        this.tell();
      }
      if (slide === this.slide) this.fit(SIZES);
      if (slide === this.slide && !document.activeElement?.closest(AT_KEYBOARD)) this.select();
    }

    /** The next cell of the slide that has not been run becomes the active one. */
    select() {
      const seen = this.slides[this.slide].steps.slice(0, this.step + 1).flat();
      const next = seen.find(cell => cell.model.type === "code" && !this.run.has(cell));
      if (next) this.notebook.activeCellIndex = this.notebook.widgets.indexOf(next);
    }

    openNotes() {
      this.notes = window.open("", `${this.key} notes`, "width=900,height=700");
      if (!this.notes) return; // the browser has blocked it, and says so
      const style = this.notes.document.createElement("style");
      style.textContent = "body { font: 22px/1.4 sans-serif; margin: 1.5em } header { color: #555 } footer { color: #555; margin-top: 2em; white-space: pre-line }";
      this.notes.document.head.replaceChildren(style); // also when it was open already
      this.notes.document.title = "Notes";
      this.notes.document.addEventListener("keydown", event => this.pressed(event), true);
      clearInterval(this.clock);
      this.clock = setInterval(() => this.tell(), 1000);
      this.tell();
    }

    /** Bring the notes' window up to date. */
    tell() {
      if (!this.notes || this.notes.closed) return;
      const minutes = Math.floor((Date.now() - (this.began ?? Date.now())) / 60000), { notes } = this.slides[this.slide];
      const head = slide => {
        const first = slide?.steps[0][0].model;
        const line = first?.sharedModel.getSource().split("\n").find(text => first.type !== "code" || /^(%%px +)?# /.test(text));
        return slide ? line?.replace(/^(%%px)?[# ]+/, "") ?? first.id.replaceAll("-", " ") : "the end";
      };
      const long = this.slides[this.slide].steps.flat().filter(cell => cell.model.getMetadata(SECONDS) >= LONG)
        .map(cell => `${head({ steps: [[cell]] })}: about ${Math.round(cell.model.getMetadata(SECONDS))} s here`);
      const body = this.notes.document.body;
      const parts = [["header", `Slide ${this.slide + 1} of ${this.slides.length}, ${minutes} min since the first one`], ["main", ""],
        ["footer", [...long, `Next: ${head(this.slides[this.slide + 1])}`].join("\n")]];
      body.replaceChildren(...parts.map(([kind, text]) => Object.assign(this.notes.document.createElement(kind), { textContent: text })));
      for (const cell of notes) body.children[1].insertAdjacentHTML("beforeend", cell.node.querySelector(".jp-RenderedMarkdown")?.innerHTML ?? "");
    }
  }

  const plugin = (INotebookTracker, NotebookActions) => ({
    id: "course-lecture:plugin",
    autoStart: true,
    requires: [INotebookTracker],
    activate: (app, tracker) => {
      let talk = null;
      tracker.widgetAdded.connect(async (_, panel) => {
        await Promise.all([panel.context.ready, panel.revealed, app.restored]);
        talk ??= new Talk(panel, NotebookActions);
      });
    },
  });

  let scope;
  const shared = async name => (await Object.values(scope[name])[0].get())();
  const container = {
    init: shareScope => { scope = shareScope; },
    get: async () => {
      const { INotebookTracker, NotebookActions } = await shared("@jupyterlab/notebook");
      const style = document.createElement("link");
      Object.assign(style, { rel: "stylesheet", href: new URL("lecture.css", here) });
      document.head.append(style);
      return () => ({ __esModule: true, default: plugin(INotebookTracker, NotebookActions) });
    },
  };
  const here = document.currentScript.src;
  (window._JUPYTERLAB ??= {})["course-lecture"] = container;
})();
