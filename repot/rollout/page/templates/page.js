"use strict";
// Draws one state of a rollout; live, the states come over server-sent events, in a report from the file itself.
const at = (id) => document.getElementById(id);
const SIDES = ["source", "target"];
const ROWS = [
  ["Waiting", "ready"], ["In hand", "in_hand"], ["Delayed", "delayed"], ["Sent", "sent"],
  ["Not sent", "not_sent", "bad"], ["Finished", "finished"], ["Failed", "failed", "bad"], ["Retried", "retried"],
  ["Redelivered", "redelivered"], ["Duplicates prevented", "prevented"], ["Unknown outcomes", "unknown_outcome", "bad"],
  ["Dead-lettered", "dead_lettered", "bad"], ["Run time, 95 % within", "runtime_p95_s", "", "s"],
  ["Wait in the queue, 95 % within", "queue_wait_p95_s", "", "s"],
];
const CHARTS = [
  ["Waiting messages", (side) => side.ready, "messages", false],
  ["Finished tasks", (side) => side.finished, "a second", true],
  ["Failed and retried", (side) => side.failed + side.retried, "a second", true],
  ["Redelivered", (side) => side.redelivered, "a second", true],
  ["Run time, 95 % within", (side) => side.runtime_p95_s, "s", false],
  ["Wait in the queue, 95 % within", (side) => side.queue_wait_p95_s, "s", false],
];
// a day has 3,000 points; a chart of 300 pixels shows no more than this
const MOST_POINTS = 600;
const STALE_MS = 5000;

let state = null;
let series = [];
let heardAt = 0;

const number = (value) => (value === null || value === undefined ? "unknown" : Number(value).toLocaleString("en"));
const percent = (weight) => `${+(weight * 100).toFixed(2)} %`;
function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}
function text(id, value) {
  // a screen reader speaks each change of a status, so it changes only when its words do
  if (at(id).textContent !== value) at(id).textContent = value;
}
function made(tag, words, className) {
  const found = document.createElement(tag);
  found.textContent = words;
  if (className) found.className = className;
  return found;
}
function rows(id, lines) {
  const body = document.createElement("tbody");
  for (const cells of lines) {
    const row = body.insertRow();
    cells.forEach((cell, place) => {
      const [words, className] = Array.isArray(cell) ? cell : [cell, ""];
      const found = made(place ? "td" : "th", words, className);
      if (!place) found.scope = "row";
      row.append(found);
    });
  }
  at(id).tBodies[0].replaceWith(body);
}

function drawPhase() {
  const { phase, weight, why, who, age_s: age } = state;
  text("route", `from ${state.source} to ${state.target}`);
  const names = { prepare: "Prepare: the target gets ready", canary: `Canary: ${percent(weight)} of the new work goes to the target`,
    paused: `Paused at ${percent(weight)}`, drain: "Drain: all work goes to the target, the source becomes empty", done: "Done",
    abort: "Abort: all work goes to the source, the target becomes empty", aborted: "Aborted" };
  text("phase", `${names[phase]}. ${who}: ${why}`);
  const names_ = ["prepare", ...state.steps.map(percent), "drain", "done"];
  const step = state.steps.findIndex((one) => one === weight);
  const place = { prepare: 0, drain: names_.length - 2, done: names_.length - 1 }[phase] ?? (step < 0 ? 0 : step + 1);
  const isBack = phase === "abort" || phase === "aborted";
  at("steps").replaceChildren(...names_.map((name, index) => {
    const item = made("li", name, !isBack && index < place ? "past" : "");
    if (!isBack && index === place) item.setAttribute("aria-current", "step");
    return item;
  }), ...(isBack ? [backStep(phase)] : []));
  const attention = attentions();
  at("attention").hidden = !attention.length;
  at("attention").className = phase === "paused" ? "ask" : "";
  text("attention", attention.join("\n"));
  at("phase").title = `for ${duration(age)}`;
}
function backStep(phase) {
  const item = made("li", phase, "back");
  item.setAttribute("aria-current", "step");
  return item;
}
function attentions() {
  const found = [];
  if (state.phase === "paused") found.push(`A person must decide: ${state.why}`);
  if (state.phase === "abort" || state.phase === "aborted") found.push(`Taken back: ${lastAbort()}`);
  if (state.manual && ["prepare", "canary"].includes(state.phase)) found.push("Each step waits for a person: promote it.");
  if (!state.is_over && !state.controller) found.push(`No controller is at work: nothing is judged, and no step follows. repot rollout resume ${state.name} --execute starts one.`);
  const look = state.look;
  if (look && !state.is_over) found.push(...look.faults, ...look.obstacles, ...look.left);
  for (const side of SIDES) if (state.depths[side] === null && !state.is_over) found.push(`The ${side} does not say what waits there.`);
  return found;
}
function lastAbort() {
  const found = state.history.filter((one) => one.phase === "abort").pop();
  return found ? `${found.who}: ${found.why}` : state.why;
}

function drawSides() {
  const lines = ROWS.map(([name, key, warns, unit]) => [name, ...SIDES.map((side) => {
    const value = state.sides[side][key];
    const words = unit ? (value === null ? "–" : `${value} ${unit}`) : number(value);
    return [words, warns && value ? warns : ""];
  })]);
  for (const [name, key, warns] of [["Synthetic tasks ended", "ended"], ["Synthetic tasks overdue", "overdue"], ["Synthetic tasks lost", "lost", "bad"]]) {
    if (SIDES.some((side) => state.synthetic[side]?.sent)) lines.push([name, ...SIDES.map((side) => {
      const found = state.synthetic[side];
      return [key === "ended" ? `${number(found.ended)} of ${number(found.sent)}` : number(found[key]), warns && found[key] ? warns : ""];
    })]);
  }
  for (const [name, key, warns] of [["Cost of runs", "cost_spent"], ["Cost of repeated runs", "cost_repeated", "bad"], ["Cost of prevented runs, estimated", "cost_prevented"]]) {
    if (SIDES.some((side) => key in state.sides[side])) lines.push([name, ...SIDES.map((side) => {
      const amount = state.sides[side][key] ?? 0;
      return [String(+amount.toFixed(2)), warns && amount ? warns : ""];
    })]);
  }
  rows("sides", lines);
  rows("queues", SIDES.flatMap((side) => state.depths[side] === null ? [["all", side, "unknown", "unknown", "unknown"]]
    : Object.entries(state.depths[side] ?? {}).map(([queue, counts]) => [queue, side, ...counts.map(number)])));
  at("moves-section").hidden = !state.moves.length;
  rows("moves", state.moves.map((one) => [one.name, one.source, one.is_alive ? one.state : `${one.state}, not at work`, number(one.delivered),
    one.rate === null ? "–" : number(Math.round(one.rate)), number(one.still_reserved), [number(one.quarantined), one.quarantined ? "bad" : ""]]));
  rows("workers", state.workers.map((one) => [one.side, one.node, one.phase, one.queues.join(", "),
    [`${duration(one.age_s)} ago`, one.phase === "running" && one.age_s > 10 ? "bad" : ""]]));
  text("beat", state.beat ? `The schedule is sent by ${state.beat}.` : "");
  rows("history", [...state.history].reverse().map((one) => [one.updated_at.replace("T", " ").replace("+00:00", " UTC"),
    one.phase, percent(one.weight), one.who, one.why]));
}
function drawJudge() {
  const look = state.look;
  text("judged", look ? `Looked ${duration(look.age_s)} ago by ${state.controller ?? "a controller that has ended"}.`
    : "Nothing is compared in this phase.");
  if (look && !look.findings.length) text("judged", "Nothing is compared in this phase.");
  at("findings").replaceChildren(...(look?.findings ?? []).map(([, verdict, why]) => {
    const item = made("li", "", verdict);
    item.append(made("b", verdict), made("span", why));
    return item;
  }));
}

function points(value, isRate) {
  const step = Math.ceil(series.length / MOST_POINTS);
  const taken = series.filter((_, index) => index % step === 0 || index === series.length - 1);
  return SIDES.map((side) => {
    const found = [];
    taken.forEach((one, index) => {
      const now = one[side] ? value(one[side]) : null;
      if (!isRate) return found.push([one.at, now]);
      const before = taken[index - 1];
      if (!before?.[side]) return undefined;
      const passed = one.at - before.at;
      return found.push([one.at, passed > 0 ? Math.max(0, now - value(before[side])) / passed : null]);
    });
    return found;
  });
}
function drawCharts() {
  const figures = CHARTS.map(([title, value, unit, isRate]) => chart(title, points(value, isRate), unit));
  at("charts").replaceChildren(...figures);
}
function chart(title, lines, unit) {
  const figure = document.createElement("figure");
  figure.append(made("h3", title));
  const known = lines.flat().filter(([, value]) => value !== null && value !== undefined);
  const most = Math.max(...known.map(([, value]) => value), 0);
  const from = series[0]?.at ?? 0;
  const to = series[series.length - 1]?.at ?? 1;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 300 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const last = lines.map((line) => [...line].reverse().find(([, value]) => value !== null && value !== undefined)?.[1]);
  const said = SIDES.map((side, place) => `${side} ${last[place] === undefined ? "unknown" : +last[place].toFixed(2)}`);
  svg.setAttribute("aria-label", `${title}, ${unit}: now ${said.join(", ")}; at most ${+most.toFixed(2)}; over ${duration(to - from)}`);
  lines.forEach((line, place) => {
    let drawn = "";
    let isOpen = false;
    for (const [time, value] of line) {
      // unknown is a gap, not zero
      if (value === null || value === undefined) { isOpen = false; continue; }
      const x = to > from ? ((time - from) / (to - from)) * 300 : 0;
      drawn += `${isOpen ? "L" : "M"}${x.toFixed(1)} ${(97 - (most ? value / most : 0) * 92).toFixed(1)}`;
      isOpen = true;
    }
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", drawn || "M0 0");
    path.setAttribute("class", SIDES[place]);
    svg.append(path);
  });
  const caption = document.createElement("figcaption");
  SIDES.forEach((side, place) => caption.append(made("span", `${place ? "- -" : "—"} ${said[place]}`, side), "  "));
  caption.append(`${unit}; top of the chart ${+most.toFixed(2)}, ${duration(to - from)}`);
  figure.append(svg, caption);
  return figure;
}

function drawActs() {
  if (!at("acts")) return;
  const shown = [...at("acts").children].map((one) => one.dataset.act).join();
  if (shown === state.acts.join()) return;
  at("acts").replaceChildren(...state.acts.map((act) => {
    const button = made("button", act[0].toUpperCase() + act.slice(1), act);
    button.dataset.act = act;
    button.addEventListener("click", () => ask(act));
    return button;
  }));
}
const MEANS = {
  promote: "The next step begins now, whatever the judge says; the target gets more of the work.",
  pause: "The weights stay as they are until a person resumes or promotes. The judge still aborts.",
  resume: "The judge decides again when the next step begins.",
  abort: "All work goes to the source again within two seconds. What is on the target is finished there.",
  finish: "All work goes to the target now, without the steps that are left, and the source becomes empty.",
};
let asked = null;
function ask(act) {
  asked = { act, generation: state.generation };
  text("confirm-title", `${act[0].toUpperCase()}${act.slice(1)} ${state.name}?`);
  text("confirm-text", MEANS[act]);
  text("go", act[0].toUpperCase() + act.slice(1));
  text("refused", "");
  at("why").value = "";
  at("confirm").showModal();
}
async function go() {
  if (!at("confirm").querySelector("form").reportValidity()) return;
  const body = { ...asked, who: at("who").value, why: at("why").value };
  try {
    const answer = await fetch("/api/act", { method: "POST", body: JSON.stringify(body),
      headers: { "Content-Type": "application/json", "X-Repot-Token": at("token").value } });
    const found = await answer.json();
    if (answer.ok) at("confirm").close();
    else text("refused", found.error);
  } catch (error) {
    text("refused", `The page's server did not answer: ${error.message}. Nothing is known of the act; look at the history.`);
  }
}

function draw() {
  drawPhase();
  drawSides();
  drawJudge();
  drawCharts();
  drawActs();
}
function took(found) {
  state = found;
  const last = series[series.length - 1];
  if (found.at - (last?.at ?? 0) >= 0.9) series.push({ at: found.at, phase: found.phase, weight: found.weight, ...found.sides });
  heardAt = Date.now();
  text("connection", "Live.");
  draw();
}
function follow() {
  const events = new EventSource("/api/events");
  events.addEventListener("state", (event) => took(JSON.parse(event.data)));
  events.addEventListener("failure", (event) => { heardAt = 0; text("connection", `Not current: ${JSON.parse(event.data)}`); });
  setInterval(() => {
    if (heardAt && Date.now() - heardAt > STALE_MS) text("connection", `Not current since ${new Date(heardAt).toLocaleTimeString()}: the page's server does not answer.`);
  }, 1000);
}
if (document.body.dataset.live === "yes") {
  if (at("confirm")) {
    at("go").addEventListener("click", go);
    at("cancel").addEventListener("click", () => at("confirm").close());
  }
  fetch("/api/series").then((answer) => (answer.ok ? answer.json() : [])).then((found) => { series = found; }, () => {}).finally(follow);
} else {
  const found = JSON.parse(at("data").textContent);
  series = found.series;
  state = found.state;
  text("connection", `As it was on ${new Date(state.at * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC.`);
  draw();
}
