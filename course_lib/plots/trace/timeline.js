// Timeline of a trace: one row per rank. The wheel zooms, dragging moves, and the pointer shows what is under it.
const ROW = 46, LEFT = 64, BAR = 20, TOP = 18, AXIS = 26;
const SHORTEST = 1e-8; // seconds: numbers that differ by less than a rounding error have no ticks between them
const UNITS = [[1, "s"], [1e3, "ms"], [1e6, "µs"]];

function unit(seconds) {
  return UNITS.find(([factor]) => seconds * factor >= 1) || UNITS[2];
}

function time(seconds) {
  const [factor, name] = unit(seconds);
  return `${Number((seconds * factor).toPrecision(3))} ${name}`;
}

/** Whether a page with text of this color is dark. */
function isDark(pen, ink) {
  pen.fillStyle = ink; // which the browser then gives back as #rrggbb or rgba(r, g, b, a)
  const found = pen.fillStyle, hex = found.startsWith("#");
  const [r, g, b] = hex ? [1, 3, 5].map((i) => parseInt(found.slice(i, i + 2), 16)) : found.match(/[\d.]+/g).map(Number);
  return r + g + b > 384;
}

function hatched(context, color) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = color;
  pen.lineWidth = 1.2;
  pen.beginPath();
  for (const shift of [-6, 0, 6]) {
    pen.moveTo(shift, 6);
    pen.lineTo(shift + 6, 0);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

function render({ model, el }) {
  const data = model.get("data"), scale = data.scale > 1 ? (data.scale * innerHeight) / 1080 : 1; // slides; all lengths below are before it
  const height = TOP + ROW * data.lanes.length + AXIS;
  const canvas = document.createElement("canvas"), tip = document.createElement("div"), bar = document.createElement("div");
  let from = 0, to = data.seconds, dragged = null;
  el.style.position = "relative";
  canvas.style.cssText = `width: 100%; height: ${height * scale}px; cursor: grab; touch-action: none`;
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", data.text);
  tip.style.cssText =
    `font: ${12 * scale}px sans-serif; position: absolute; display: none; pointer-events: none; padding: 3px 7px; white-space: pre; z-index: 2;` +
    "background: var(--jp-layout-color1, Canvas); color: var(--jp-ui-font-color1, CanvasText); border: 1px solid var(--jp-border-color1, #bbb)";
  bar.style.cssText = `font: ${12 * scale}px sans-serif; color: var(--jp-ui-font-color2, inherit)`;
  for (const [text, factor] of [["zoom in", 0.5], ["zoom out", 2], ["whole trace", Infinity]]) {
    const button = document.createElement("button");
    button.textContent = text;
    button.style.cssText = "font: inherit; margin-right: 6px";
    button.onclick = () => zoom((from + to) / 2, factor);
    bar.append(button);
  }
  bar.append("The wheel zooms, dragging moves; point at something to see what it is.");
  const legend = document.createElement("div");
  legend.style.cssText = `font: ${12 * scale}px sans-serif; color: var(--jp-ui-font-color1, inherit); padding: 4px 0`;
  for (const [color, text, hatch] of data.legend) {
    const sample = document.createElement("span");
    sample.style.cssText =
      `display: inline-block; width: 1.4em; height: 0.8em; margin: 0 0.4em 0 1em; border: 1px solid ${color}; background: ` +
      (hatch ? `repeating-linear-gradient(135deg, ${color} 0 1px, transparent 1px 4px)` : color);
    legend.append(sample, text);
  }
  const light = data.computing, ours = [...legend.querySelectorAll("span")].filter((_, i) => data.legend[i][0] === light);
  const said = document.createElement("div");
  said.textContent = data.text;
  said.style.cssText = `font: ${13 * scale}px sans-serif; color: var(--jp-ui-font-color1, inherit)`;
  el.append(said, canvas, legend, bar, tip);

  const width = () => canvas.clientWidth / scale - LEFT - 8;
  const x = (t) => LEFT + ((t - from) / (to - from)) * width();
  const t = (px) => from + ((px - LEFT) / width()) * (to - from);

  function show(begin, end) {
    const span = Math.min(end - begin, data.seconds);
    from = Math.max(0, Math.min(begin, data.seconds - span));
    to = from + span;
    draw();
  }

  function zoom(at, factor) {
    const share = (at - from) / (to - from), span = Math.min(Math.max((to - from) * factor, SHORTEST), data.seconds);
    show(at - share * span, at - share * span + span);
  }

  function box(pen, begin, end, y, h) {
    if (end < from || begin > to) return false;
    const left = Math.max(x(begin), LEFT), right = Math.min(x(end), LEFT + width());
    pen.fillRect(left, y, Math.max(right - left, 0.6), h);
    return right - left;
  }

  function label(pen, text, begin, end, y, color = pen.fillStyle, ground = "") {
    const left = Math.max(x(begin), LEFT), right = Math.min(x(end), LEFT + width()), wide = pen.measureText(text).width + 4;
    if (right - left <= wide) return;
    if (ground) {
      pen.fillStyle = ground;
      pen.fillRect((left + right - wide) / 2, y - 7, wide, 14);
    }
    pen.fillStyle = color;
    pen.fillText(text, (left + right) / 2, y);
  }

  function draw() {
    const ratio = window.devicePixelRatio || 1, pen = canvas.getContext("2d"), style = getComputedStyle(el);
    const ink = style.getPropertyValue("--jp-ui-font-color1").trim() || style.color; // outside JupyterLab, the page's own
    const dark = isDark(pen, ink), paper = style.getPropertyValue("--jp-layout-color0").trim() || (dark ? "#111" : "white");
    const computing = dark ? "#3b3b3b" : light; // as themes.py has it
    for (const sample of ours) sample.style.background = sample.style.borderColor = computing;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = height * scale * ratio;
    pen.scale(ratio * scale, ratio * scale);
    pen.clearRect(0, 0, canvas.clientWidth, height);
    pen.font = "11px sans-serif";
    pen.textBaseline = "middle";
    const patterns = {};
    data.lanes.forEach((lane, row) => {
      const y = TOP + row * ROW + 10;
      pen.fillStyle = ink;
      pen.textAlign = "left";
      pen.fillText(`rank ${lane.rank}`, 4, y + BAR / 2);
      pen.textAlign = "center";
      pen.fillStyle = computing;
      for (const [begin, end, state] of lane.segments) if (state === "computing") box(pen, begin, end, y, BAR);
      const wide = lane.operations.filter(([begin, end, , , inWork]) => !inWork || x(end) - x(begin) > 24); // others would hide the work
      const inside = wide.filter(([, , , , inWork]) => inWork), calls = lane.segments.filter(([, , state]) => state !== "computing");
      for (const [begin, end, , color, number] of lane.work) {
        const middle = (begin + end) / 2;
        pen.fillStyle = color;
        const seen = box(pen, begin, end, y, BAR) > 6, half = (t(pen.measureText(number).width + 4) - t(0)) / 2;
        const hides = ([b, e]) => b < middle + half && middle - half < e;
        if (seen && !inside.some(hides) && !calls.some(hides)) {
          pen.fillStyle = "#222";
          label(pen, number, begin, end, y + BAR / 2);
        }
      }
      for (const [begin, end, name, depth, inWork] of wide) {
        pen.fillStyle = inWork ? "rgba(255, 255, 255, 0.4)" : depth % 2 ? "#a9a9a9" : "#b9b9b9"; // the work's own colour shines through
        if (box(pen, begin, end, y + 2, BAR - 4) > 24) {
          pen.fillStyle = "#222";
          label(pen, name, begin, end, y + BAR / 2);
        }
      }
      for (const [begin, end, state, color, text] of lane.segments) {
        if (state === "computing") continue;
        const whom = text.split("\n")[1] || ""; // "for rank 3"
        if (state === "waiting") {
          pen.fillStyle = paper;
          box(pen, begin, end, y, BAR);
          pen.fillStyle = patterns[color] = patterns[color] || hatched(pen, color);
        } else pen.fillStyle = color;
        box(pen, begin, end, y, BAR);
        if (state === "waiting" && whom) label(pen, whom, begin, end, y + BAR / 2, ink, paper);
      }
      for (const [begin, end, color] of lane.flights) {
        pen.fillStyle = color;
        box(pen, begin, end, y + BAR + 2, 4);
      }
      for (const [begin, end, text] of lane.spans) {
        pen.fillStyle = data.span;
        if (box(pen, begin, end, y - 4, 2) > 0) {
          pen.fillStyle = ink;
          label(pen, text, begin, end, y - 10);
        }
      }
    });
    pen.strokeStyle = ink;
    pen.lineWidth = 0.8;
    const seen = data.arrows.filter(([, sent, , received]) => received >= from && sent <= to);
    for (const [source, sent, dest, received] of seen.length > 400 ? [] : seen) {
      const [x1, y1, x2, y2] = [x(sent), TOP + source * ROW + 10 + BAR / 2, x(received), TOP + dest * ROW + 10 + BAR / 2];
      const angle = Math.atan2(y2 - y1, x2 - x1);
      pen.beginPath();
      pen.moveTo(x1, y1);
      pen.lineTo(x2, y2);
      for (const turn of [0.4, -0.4]) {
        pen.moveTo(x2, y2);
        pen.lineTo(x2 - 7 * Math.cos(angle + turn), y2 - 7 * Math.sin(angle + turn));
      }
      pen.stroke();
    }
    pen.clearRect(0, height - AXIS, canvas.clientWidth, AXIS);
    pen.fillStyle = ink;
    pen.textAlign = "center";
    const [factor, name] = unit(to - from), rough = ((to - from) * factor) / 6, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
    for (let at = Math.ceil((from * factor) / step) * step; at <= to * factor; at += step) {
      pen.fillRect(x(at / factor), height - AXIS, 1, 5);
      pen.fillText(`${Number(at.toPrecision(6))} ${name}`, x(at / factor), height - AXIS + 14);
    }
  }

  function under(event) {
    const place = canvas.getBoundingClientRect(), px = (event.clientX - place.left) / scale, py = (event.clientY - place.top) / scale;
    const lane = data.lanes[Math.floor((py - TOP) / ROW)], at = t(px), y = (py - TOP) % ROW;
    if (!lane || px < LEFT) return "";
    const inside = (list) => list.filter(([begin, end]) => begin <= at && at <= end);
    if (y > 10 + BAR) return inside(lane.flights).map(([b, e, , text]) => `${text}\nin flight ${time(e - b)}`)[0] || "";
    if (y < 8) return inside(lane.spans).map(([b, e, text]) => `${text}: ${time(e - b)}`).join("\n");
    const named = ([b, e, text]) => `${text}: ${time(e - b)}`, work = inside(lane.work).map(named);
    const call = inside(lane.segments).filter(([, , state]) => state !== "computing" || !work.length);
    const operation = call.length && call[0][2] !== "computing" ? [] : inside(lane.operations).slice(-1).map(named);
    if (operation.length) return [...work, ...operation].join("\n");
    return [...work, ...call.map(([b, e, state, , text]) => `${state} ${time(e - b)}${text ? "\n" + text : ""}`).slice(0, 1)].join("\n");
  }

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(t(event.offsetX / scale), event.deltaY > 0 ? 1.25 : 0.8);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    dragged = [event.offsetX / scale, from, to];
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => (dragged = null));
  canvas.addEventListener("pointermove", (event) => {
    if (dragged) {
      const [start, begin, end] = dragged, shift = ((start - event.offsetX / scale) / width()) * (end - begin);
      show(begin + shift, end + shift);
    }
    const text = dragged ? "" : under(event);
    tip.textContent = text;
    tip.style.display = text ? "block" : "none";
    tip.style.left = `${Math.min(event.offsetX + 14, canvas.clientWidth - 260)}px`;
    tip.style.top = `${canvas.offsetTop + event.offsetY + 14}px`;
  });
  canvas.addEventListener("pointerleave", () => (tip.style.display = "none"));
  canvas.addEventListener("keydown", (event) => {
    const step = (to - from) / 8;
    if (event.key === "ArrowLeft") show(from - step, to - step);
    else if (event.key === "ArrowRight") show(from + step, to + step);
    else if (event.key === "+") zoom((from + to) / 2, 0.5);
    else if (event.key === "-") zoom((from + to) / 2, 2);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  const resized = new ResizeObserver(draw);
  resized.observe(canvas);
  const themed = new MutationObserver(() => requestAnimationFrame(draw)); // until then, a page that changes its styles has no sizes
  for (const page of [document.documentElement, document.body])
    themed.observe(page, { attributeFilter: ["class", "data-theme", "data-jp-theme-light"] });
  return () => [resized, themed].forEach((observer) => observer.disconnect());
}

export default { render };
