"use strict";
// Draws one state of a rollout; live, the states come over server-sent events, in a report from the file itself.
const at = (id) => document.getElementById(id);
const SIDES = ["source", "target"];
const ROWS = [
  ["Waiting", "ready"], ["In hand", "in_hand"], ["Delayed", "delayed"], ["Sent", "sent"],
  ["Not sent", "not_sent", "bad"], ["Finished", "finished"], ["Failed", "failed", "bad"], ["Retried", "retried"],
  ["Redelivered", "redelivered"], ["Duplicates prevented", "prevented"], ["Unknown outcomes", "unknown_outcome", "bad"],
  ["Dead-lettered", "dead_lettered", "bad"], ["Run time in the step, 95 % within", "runtime_p95_s", "", "s"],
  ["Wait in the step, 95 % within", "queue_wait_p95_s", "", "s"],
];
const TASK_FIGURES = [
  ["finished"], ["failed"], ["retried"], ["runtime_p50_s", "s"], ["runtime_p90_s", "s"], ["queue_wait_p90_s", "s"],
];
const CHARTS = [
  ["Waiting", (side) => side.ready, "messages", false],
  ["Finished", (side) => side.finished, "tasks a second", true],
  ["Failed and retried", (side) => side.failed + side.retried, "tasks a second", true],
  ["Redelivered", (side) => side.redelivered, "messages a second", true],
  ["Run time in the step, 95 % within", (side) => side.runtime_p95_s, "s", false],
  ["Wait in the step, 95 % within", (side) => side.queue_wait_p95_s, "s", false],
];
const PHASES = {
  prepare: () => "Prepare: the target gets ready",
  canary: () => `Canary: ${percent(state.weight)} of the new work goes to the target`,
  paused: () => `Paused at ${percent(state.weight)}`,
  drain: () => "Drain: all work goes to the target, the source becomes empty",
  done: () => "Done: all work goes to the target",
  abort: () => "Abort: all work goes to the source, the target becomes empty",
  aborted: () => "Aborted: all work goes to the source",
};
const WATCHED = ["canary", "paused"];
const VERDICTS = ["fail", "inconclusive", "pass"];
// a day has 3,000 points; a chart of 300 pixels shows no more than this
const MOST_POINTS = 600;
// and rates of single seconds are noise
const MOST_RATES = 120;
// points are as far apart as the controller keeps them
const CLOSEST_S = 0.9;
const SPREAD = 500;
const STALE_MS = 5000;
// a difference of shares that stands out; the judge weighs it
const TOLERANCE = 0.005;

let state = null;
let series = [];
let charts = [];
let heardAt = 0;
let tookAt = 0;

const isKnown = (value) => value !== null && value !== undefined;
const number = (value) => (isKnown(value) ? Number(value).toLocaleString("en") : "unknown");
const seconds = (value) => (isKnown(value) ? Charts.seconds(value) : "–");
const percent = (weight) => `${+(weight * 100).toFixed(2)} %`;
const whenOf = (entry) => Date.parse(entry.updated_at) / 1000;
const isBack = () => state.phase === "abort" || state.phase === "aborted";
// live, ages go on also while no state comes
const passed = () => (tookAt ? (Date.now() - tookAt) / 1000 : 0);
function duration(exact) {
  const whole = Math.max(0, Math.round(exact));
  if (whole < 60) return `${whole} s`;
  if (whole < 600) return `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
  if (whole < 5400) return `${Math.round(whole / 60)} min`;
  return whole < 172800 ? `${(whole / 3600).toFixed(1)} h` : `${Math.round(whole / 86400)} days`;
}
function text(id, value) {
  // a screen reader speaks each change of a status, so it changes only when its words do
  if (at(id).textContent !== value) at(id).textContent = value;
}
function made(tag, content, className) {
  const found = document.createElement(tag);
  found.append(content);
  if (className) found.className = className;
  return found;
}
function ago(age) {
  const found = made("span", `${duration(age + passed())} ago`);
  found.dataset.age = age;
  return found;
}
function heads(id) {
  return [...at(id).tHead.rows[0].cells].map((one) => one.textContent);
}
function rows(id, lines, empty) {
  const names = heads(id);
  const body = document.createElement("tbody");
  for (const cells of lines) {
    const row = body.insertRow();
    cells.forEach((cell, place) => {
      const [content, className] = Array.isArray(cell) ? cell : [cell, ""];
      const found = made(place ? "td" : "th", content, className);
      found.dataset.label = names[place];
      if (!place) found.scope = "row";
      row.append(found);
    });
  }
  if (!lines.length) body.append(nothing(names.length, empty));
  at(id).tBodies[0].replaceWith(body);
}
function nothing(columns, words) {
  const found = made("td", words, "nothing");
  found.colSpan = columns;
  return made("tr", found);
}

function drawPhase() {
  text("route", `from ${state.source} to ${state.target}`);
  text("phase", PHASES[state.phase]());
  document.title = `${state.phase === "canary" ? percent(state.weight) : state.phase} – Rollout ${state.name}`;
  const names = ["prepare", ...state.steps.map(percent), "drain", "done"];
  const step = state.step ? state.steps.indexOf(state.step.weight) : -1;
  const place = { prepare: 0, drain: names.length - 2, done: names.length - 1 }[state.phase] ?? step + 1;
  const items = names.map((name, index) => stepItem(name, index, place));
  if (isBack()) items.push(current(made("li", state.phase, "back")));
  at("steps").replaceChildren(...items);
  const found = attentions();
  at("attention").hidden = !found.length;
  at("attention").className = state.phase === "paused" ? "ask" : "";
  text("attention", found.join("\n"));
  // once is enough
  at("reason").hidden = state.phase === "paused" || found.some((one) => one.includes(state.why));
  text("reason", `${state.who}: ${state.why}`);
}
function stepItem(name, index, place) {
  const item = made("li", name, index < place ? "past" : "");
  if (index !== place) return item;
  if (!isBack()) return current(item);
  if (index) {
    item.className = "failed";
    item.append(made("span", ", taken back", "unseen"));
  }
  return item;
}
function current(item) {
  item.setAttribute("aria-current", "step");
  return item;
}
function attentions() {
  const found = [];
  if (state.phase === "paused") found.push(`A person must decide: ${pausedBecause()}`);
  if (isBack()) found.push(`Taken back by ${lastAbort().who}: ${lastAbort().why}`);
  if (state.manual && ["prepare", "canary"].includes(state.phase)) found.push("Each step waits for a person: promote it.");
  if (!state.is_over && !state.controller) found.push(`No controller is at work: nothing is judged, and no step follows. repot rollout resume ${state.name} --execute starts one.`);
  const look = state.look;
  if (look && !state.is_over) found.push(...look.faults, ...look.obstacles, ...look.left);
  for (const side of SIDES) if (state.depths[side] === null && !state.is_over) found.push(`The ${side} does not say what waits there.`);
  return found;
}
function pausedBecause() {
  // the controller's reason begins with the same words
  return state.who === "controller" ? state.why.replace(/^a person must decide: /, "") : `paused by ${state.who}, ${state.why}`;
}
function lastAbort() {
  return state.history.filter((one) => one.phase === "abort").pop() ?? state;
}

function drawTiming() {
  const inPhase = duration(state.phase_age_s + passed());
  const inStep = state.step ? state.step.age_s + passed() : 0;
  const found = [];
  if (WATCHED.includes(state.phase)) found.push(baked(inStep));
  if (state.phase === "canary") found.push(`Canary for ${inPhase}.`, ...asks());
  if (state.phase === "paused") found.push(`Paused for ${inPhase}${state.controller ? "; the judge goes on" : ""}.`);
  if (["prepare", "drain", "abort"].includes(state.phase)) found.push(`In this phase for ${inPhase}.`);
  if (isBack() && state.step) found.push(`Step ${percent(state.step.weight)} was taken back after ${duration(whenOf(lastAbort()) - state.step.began_at)}.`);
  if (state.is_over) found.push(`It ended ${inPhase} ago, after ${duration(whenOf(state) - whenOf(state.history[0]))}.`);
  text("timing", found.join(" "));
  at("baked").hidden = !WATCHED.includes(state.phase) || !state.bake_s;
  [at("baked").max, at("baked").value] = [state.bake_s || 1, Math.min(inStep, state.bake_s || 1)];
}
function baked(inStep) {
  const name = `Step ${percent(state.step.weight)}`;
  if (!isKnown(state.bake_s)) return `${name} for ${duration(inStep)}.`;
  if (inStep < state.bake_s) return `${name}: ${duration(inStep)} of ${duration(state.bake_s)} baked.`;
  const next = state.phase === "paused" || state.manual ? "it waits for a person" : "it ends when the judge passes it";
  return `${name}: ${duration(state.bake_s)} baked, ${duration(inStep)} in all; ${next}.`;
}
function asks() {
  if (!isKnown(state.patience_s) || !state.judged?.findings.some(([, verdict]) => verdict === "inconclusive")) return [];
  return [`A person is asked in ${duration(state.patience_s - state.age_s - passed())} if it stays inconclusive.`];
}
function tick() {
  if (!state) return;
  drawTiming();
  for (const one of document.querySelectorAll("[data-age]")) one.textContent = `${duration(+one.dataset.age + passed())} ago`;
}

function drawSides() {
  const lines = ROWS.map(([name, key, warns, unit]) => [name, ...SIDES.map((side) => {
    const value = state.sides[side][key];
    return [unit ? seconds(value) : number(value), warns && value ? warns : ""];
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
  const last = series[series.length - 1];
  const until = state.is_over && last ? `, to ${Charts.clock(last.at, 8)}` : "";
  text("counted", `Counts are since the rollout began; what waits is of now. Run times and waits are ${inTheStep()}${until}.`);
}
function inTheStep() {
  if (!state.step) return "since the rollout began: no step has begun yet";
  return `of the step ${percent(state.step.weight)}, since ${Charts.clock(state.step.began_at, 8)} UTC`;
}
function drawTasks() {
  const { busiest, more } = state.tasks;
  const bodies = busiest.map((task) => {
    const body = document.createElement("tbody");
    body.append(...SIDES.map((side, place) => taskRow(task, side, place)));
    return body;
  });
  const empty = state.step ? "No task has run in this step yet." : "Each task appears here after its first run.";
  if (!bodies.length) bodies.push(made("tbody", nothing(heads("tasks").length, empty)));
  for (const body of [...at("tasks").tBodies]) body.remove();
  at("tasks").append(...bodies);
  const left = more ? ` These ran most often; ${number(more)} more are not shown.` : "";
  text("counted-tasks", `Both sides ${inTheStep()}. Times count each root once, as the judge does.${left}`);
}
const share = (side, key) => side[key] / Math.max(1, side.finished + side.retried);
function taskRow(task, side, place) {
  const row = document.createElement("tr");
  if (!place) {
    const name = made("th", task.task);
    [name.rowSpan, name.scope] = [SIDES.length, "rowgroup"];
    row.append(name);
  }
  const named = made("th", side, side);
  named.scope = "row";
  row.append(named, ...TASK_FIGURES.map(([key, unit]) => {
    const isWorse = side === "target" && ["failed", "retried"].includes(key) && share(task.target, key) > share(task.source, key) + TOLERANCE;
    return made("td", (unit ? seconds : number)(task[side][key]), isWorse ? "bad" : "");
  }));
  return row;
}
function drawLists() {
  rows("queues", SIDES.flatMap((side) => state.depths[side] === null ? [["all", side, "unknown", "unknown", "unknown"]]
    : Object.entries(state.depths[side] ?? {}).map(([queue, counts]) => [queue, side, ...counts.map(number)])),
  "The queues appear with the plan.");
  at("moves-section").hidden = !state.moves.length;
  rows("moves", state.moves.map((one) => [one.name, one.source, one.is_alive ? one.state : `${one.state}, not at work`, number(one.delivered),
    one.rate === null ? "–" : number(Math.round(one.rate)), number(one.still_reserved), [number(one.quarantined), one.quarantined ? "bad" : ""]]), "");
  rows("workers", state.workers.map((one) => [one.node, one.side, one.phase, one.queues.join(", "),
    [ago(one.age_s), one.phase === "running" && one.age_s > 10 ? "bad" : ""]]),
  "No worker has reported yet: it appears a second after it has started with WORKER_ROLLOUT.");
  text("beat", state.beat ? `The schedule is sent by ${state.beat}.` : "");
  rows("history", [...state.history].reverse().map((one) => [one.updated_at.replace("T", " ").replace("+00:00", " UTC"),
    one.phase, percent(one.weight), one.who, one.why]), "The first entry comes with the rollout's start.");
}

function drawJudge() {
  const judged = state.judged;
  const faults = (judged?.faults ?? []).map((one) => ["fault", "fail", one]);
  const findings = [...faults, ...(judged?.findings ?? [])];
  findings.sort(([, one], [, other]) => VERDICTS.indexOf(one) - VERDICTS.indexOf(other));
  at("judged").replaceChildren(...(judged ? [`${whatWasJudged()}, `, ago(judged.age_s), "."] : [notJudged()]));
  at("findings").replaceChildren(...findings.map(([, verdict, why]) => {
    const item = made("li", made("b", verdict), verdict);
    item.append(made("span", why));
    return item;
  }));
}
function whatWasJudged() {
  const step = `the step ${percent(state.step.weight)}`;
  if (state.judged.is_now) return `The last look at ${step}${state.controller ? `, by ${state.controller}` : ""}`;
  return isBack() ? `At the abort of ${step}` : `The last look at the last step, ${percent(state.step.weight)}`;
}
function notJudged() {
  if (WATCHED.includes(state.phase)) return "The first findings of this step come with the controller's next look.";
  if (state.phase === "prepare") return "Nothing is compared yet. The judge begins with the first step.";
  return "Nothing was compared.";
}

function points(value, isRate) {
  const step = Math.ceil(series.length / (isRate ? MOST_RATES : MOST_POINTS));
  const taken = series.filter((_, index) => index % step === 0 || index === series.length - 1);
  const last = taken[taken.length - 1];
  // the table and the chart end with the same state
  if (!state.is_over && last && state.at > last.at) taken.push({ at: state.at, ...state.sides });
  const found = taken.map((one, index) => [one.at, ...SIDES.map((side) => {
    const amount = one[side] ? value(one[side]) : null;
    if (!isRate) return amount;
    const before = taken[index - 1];
    const apart = one.at - before?.at;
    return before?.[side] && apart >= CLOSEST_S ? Math.max(0, amount - value(before[side])) / apart : null;
  })]);
  // one point has no rate; the first of several keeps its place, so that all charts have one axis of time
  return isRate && found.length < 2 ? [] : found;
}
function marks() {
  const changed = state.history.filter((one, place) => {
    const before = state.history[place - 1];
    return before && (before.phase !== one.phase || before.weight !== one.weight);
  });
  return changed.map((one) => [whenOf(one), one.phase === "canary" ? percent(one.weight) : one.phase, one.phase.startsWith("abort")]);
}
function drawCharts() {
  if (!charts.length) {
    charts = CHARTS.map(([title, value, unit, isRate]) => {
      const look = isRate ? "second look" : "first look";
      return [new Charts.Chart(at("charts"), title, unit, `The first point comes with the controller's ${look}.`), value, isRate];
    });
  }
  const changes = marks();
  for (const [chart, value, isRate] of charts) chart.show(points(value, isRate), changes);
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
  drawTiming();
  drawSides();
  drawJudge();
  drawCharts();
  drawTasks();
  drawLists();
  drawActs();
}
function took(found) {
  state = found;
  const last = series[series.length - 1];
  const apart = last ? Math.max(CLOSEST_S, (last.at - series[0].at) / SPREAD) : 0;
  if (!found.is_over && found.at - (last?.at ?? 0) >= apart) series.push({ at: found.at, ...found.sides });
  heardAt = tookAt = Date.now();
  connection("Live.", "");
  draw();
}
function connection(words, className) {
  text("connection", words);
  at("connection").className = className;
}
function follow() {
  const events = new EventSource("/api/events");
  events.addEventListener("state", (event) => took(JSON.parse(event.data)));
  events.addEventListener("failure", (event) => { heardAt = 0; connection(`Not current: ${JSON.parse(event.data)}`, "stale"); });
  setInterval(() => {
    if (heardAt && Date.now() - heardAt > STALE_MS) connection(`Not current since ${Charts.clock(heardAt / 1000, 8)} UTC: the page's server does not answer.`, "stale");
    tick();
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
