"use strict";
// Line charts of both sides over time. All charts of a page share one moment, which a pointer or the arrow keys choose.
const Charts = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 150;
  const MARGIN = { left: 46, right: 10, top: 18, bottom: 22 };
  const TIMES_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  // seconds without a point, and times the usual distance of two, after which nothing was seen
  const [GAP_S, GAP] = [10, 5];
  const all = [];
  // seconds since 1970; null follows the last point
  let moment = null;

  const isKnown = (value) => value !== null && value !== undefined && !Number.isNaN(value);
  const rounded = (value, digits = 3) => String(+value.toPrecision(digits));
  function seconds(value) {
    if (value < 0.1 && value > 0) return `${rounded(value * 1000)} ms`;
    if (value < 120) return `${rounded(value)} s`;
    return value < 7200 ? `${rounded(value / 60)} min` : `${rounded(value / 3600)} h`;
  }
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  function words(value, unit) {
    // without a run there is no duration; a count is always one
    if (!isKnown(value)) return unit === "s" ? "–" : "unknown";
    return unit === "s" ? seconds(value) : compact.format(value);
  }
  const clock = (time, digits) => new Date(time * 1000).toISOString().slice(11, 11 + digits);

  function round(least, places) {
    const power = 10 ** Math.floor(Math.log10(least));
    return places.find((one) => one * power >= least * 0.999) * power;
  }
  function values(most, unit) {
    if (!most) return [0, 1];
    // round in the unit that is shown
    const scale = unit !== "s" || most < 120 ? 1 : most < 7200 ? 60 : 3600;
    const step = Math.max(round(most / scale / 3, [1, 2, 5, 10]), unit === "messages" ? 1 : 0) * scale;
    return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, place) => place * step);
  }
  function times(from, to, width) {
    const most = Math.max(2, Math.floor(width / 60));
    const step = TIMES_S.find((one) => (to - from) / one <= most) ?? 86400 * Math.ceil((to - from) / 86400 / most);
    const found = [];
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) found.push(time);
    const day = (time) => new Date(time * 1000).toLocaleDateString("en", { day: "numeric", month: "short", timeZone: "UTC" });
    return found.map((time) => [time, step >= 86400 ? day(time) : clock(time, step < 60 ? 8 : 5)]);
  }
  function part(parent, name, attributes, content) {
    const found = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
    if (content !== undefined) found.textContent = content;
    parent.append(found);
    return found;
  }
  function html(parent, name, content, className) {
    const found = document.createElement(name);
    found.textContent = content;
    if (className) found.className = className;
    parent.append(found);
    return found;
  }

  class Chart {
    constructor(parent, title, unit, empty) {
      Object.assign(this, { title, unit, empty, points: [], marks: [] });
      this.figure = html(parent, "figure", "");
      const head = html(this.figure, "div", "", "head");
      const name = html(head, "h3", title);
      if (unit !== "s") html(name, "span", ` ${unit}`, "quiet");
      this.time = html(head, "span", "", "time");
      this.svg = part(this.figure, "svg", { height: HEIGHT });
      const caption = html(this.figure, "figcaption", "");
      this.legend = ["source", "target"].map((side) => {
        const key = part(caption, "svg", { width: 22, height: 8, "aria-hidden": "true" });
        part(key, "path", { class: side, d: "M1 4H21" });
        html(caption, "span", side, side);
        return html(caption, "b", "");
      });
      this.svg.addEventListener("pointermove", (event) => this.choose(this.timeAt(event.offsetX)));
      this.svg.addEventListener("pointerleave", () => document.activeElement !== this.svg && this.choose(null));
      this.svg.addEventListener("focus", () => this.points.length && this.choose(moment ?? this.points[this.points.length - 1][0]));
      this.svg.addEventListener("blur", () => this.choose(null));
      this.svg.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => this.figure.clientWidth !== this.width && this.draw()).observe(this.figure);
      all.push(this);
    }
    // points: of each moment its time, and the values of both sides; marks: time, name, and whether it is bad
    show(points, marks) {
      Object.assign(this, { points, marks });
      this.draw();
    }
    draw() {
      const { svg, points } = this;
      this.width = this.figure.clientWidth;
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
      this.figure.classList.toggle("empty", !points.length);
      if (!points.length) {
        this.time.textContent = "";
        for (const name of ["tabindex", "role", "aria-label"]) svg.removeAttribute(name);
        part(svg, "text", { x: this.width / 2, y: HEIGHT / 2, class: "none" }, this.empty);
        return;
      }
      [this.from, this.to] = [points[0][0], Math.max(points[points.length - 1][0], points[0][0] + 1)];
      const known = points.flatMap(([, ...sides]) => sides).filter(isKnown);
      const ticks = values(Math.max(0, ...known), this.unit);
      this.top = ticks[ticks.length - 1];
      this.drawGrid(ticks);
      this.drawMarks();
      ["source", "target"].forEach((side, place) => part(svg, "path", { class: side, d: this.path(place + 1) }));
      this.cursor = part(svg, "g", { class: "cursor" });
      const given = { tabindex: 0, role: "slider", "aria-label": `${this.title}, ${this.unit}`, "aria-valuemin": 0,
        "aria-valuemax": points.length - 1 };
      for (const [name, value] of Object.entries(given)) svg.setAttribute(name, value);
      this.point();
    }
    drawGrid(ticks) {
      const right = this.width - MARGIN.right;
      for (const tick of ticks) {
        part(this.svg, "path", { class: "grid", d: `M${MARGIN.left} ${this.y(tick)}H${right}` });
        part(this.svg, "text", { class: "value", x: MARGIN.left - 6, y: this.y(tick) + 4 }, tick ? words(tick, this.unit) : "0");
      }
      for (const [time, name] of times(this.from, this.to, right - MARGIN.left)) {
        part(this.svg, "path", { class: "grid", d: `M${this.x(time)} ${HEIGHT - MARGIN.bottom}v4` });
        part(this.svg, "text", { class: "when", x: Math.min(this.x(time), this.width - 3.2 * name.length), y: HEIGHT - 5 }, name);
      }
    }
    drawMarks() {
      let free = 0;
      for (const [time, name, isBad] of this.marks.filter(([one]) => one >= this.from && one <= this.to)) {
        const [x, width] = [this.x(time), 7 * name.length + 6];
        part(this.svg, "path", { class: isBad ? "mark bad" : "mark", d: `M${x} ${MARGIN.top - 4}V${HEIGHT - MARGIN.bottom}` });
        // names may not cover each other; the lines stay
        const begin = Math.min(x, this.width - width);
        if (begin < free) continue;
        part(this.svg, "text", { class: isBad ? "mark bad" : "mark", x: begin, y: 10 }, name);
        free = begin + width;
      }
    }
    path(place) {
      const apart = this.points.slice(1).map(([time], before) => time - this.points[before][0]).sort((one, other) => one - other);
      const longest = Math.max(GAP_S, GAP * (apart[apart.length >> 1] ?? 0));
      let drawn = "";
      let before = null;
      for (const point of this.points) {
        const [time, value] = [point[0], point[place]];
        // unknown is a gap, not zero; so is a time without a controller
        const isOpen = before !== null && time - before <= longest;
        before = isKnown(value) ? time : null;
        // a point between two gaps has a length as well, else it is not drawn
        if (isKnown(value)) drawn += `${isOpen ? "L" : "M"}${this.x(time).toFixed(1)} ${this.y(value).toFixed(1)}${isOpen ? "" : "h.1"}`;
      }
      return drawn || "M0 0";
    }
    x(time) { return MARGIN.left + ((time - this.from) / (this.to - this.from)) * (this.width - MARGIN.left - MARGIN.right); }
    y(value) { return HEIGHT - MARGIN.bottom - (value / this.top) * (HEIGHT - MARGIN.bottom - MARGIN.top); }
    timeAt(x) { return this.from + ((x - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right)) * (this.to - this.from); }
    nearest(time) {
      let found = 0;
      this.points.forEach(([one], place) => { if (Math.abs(one - time) <= Math.abs(this.points[found][0] - time)) found = place; });
      return found;
    }
    choose(time) {
      moment = time;
      for (const one of all) if (one.points.length) one.point();
    }
    key(event) {
      const last = this.points.length - 1;
      const place = this.nearest(moment ?? this.to);
      const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 10, PageDown: -10, Home: -last, End: last };
      if (event.key === "Escape") this.choose(null);
      if (!(event.key in steps)) return;
      event.preventDefault();
      this.choose(this.points[Math.min(Math.max(place + steps[event.key], 0), last)][0]);
    }
    point() {
      const place = moment === null ? this.points.length - 1 : this.nearest(moment);
      const [time, ...sides] = this.points[place];
      const said = sides.map((value) => words(value, this.unit));
      said.forEach((one, side) => { this.legend[side].textContent = one; });
      this.time.textContent = `${clock(time, 8)} UTC`;
      this.svg.setAttribute("aria-valuenow", place);
      this.svg.setAttribute("aria-valuetext", `${clock(time, 8)}: source ${said[0]}, target ${said[1]}`);
      this.cursor.replaceChildren();
      if (moment === null) return;
      part(this.cursor, "path", { d: `M${this.x(time)} ${MARGIN.top}V${HEIGHT - MARGIN.bottom}` });
      sides.forEach((value, side) => {
        if (isKnown(value)) part(this.cursor, "circle", { class: side ? "target" : "source", cx: this.x(time), cy: this.y(value), r: 3.5 });
      });
    }
  }
  return { Chart, seconds, clock };
})();
