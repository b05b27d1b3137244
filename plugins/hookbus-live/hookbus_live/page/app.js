// Keeps the page up to date: asks the server once a second, and draws what has changed.

import { Refused, get, points } from "./api.js";
import { Board, colour } from "./charts.js";
import { $, duration, el, number } from "./dom.js";
import { openParts, showDetails, showProgress } from "./panels.js";
import { listen, showRequests } from "./requests.js";

const EVERY_MS = 1000;
const AFTER_ERROR_MS = 3000;
const MOST_SHOWN = 50;
const MOST_LINES = 200; // of one request, which hold the server and this page for a moment
const BUDGET_MS = 4; // of drawing in a frame; putting it on the screen takes as long again
const FIRST = ["loss", "val/loss", "accuracy", "val/accuracy"];

const state = { list: null, shown: new Map(), focus: null, colours: new Map(), isOver: false };
const board = new Board($("charts"), () => soon());
let pending = false;
let isDrawing = false;
let frameBegan = 0;
const nextFrame = (then) => requestAnimationFrame(() => then(performance.now()));

function soon() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    drawCharts().catch(tell);
  });
}

function tell(error) {
  const status = $("status");
  status.classList.add("bad");
  const lost = state.isOver ? "The training has ended, and so has its page." : "The server cannot be reached; trying again.";
  const text = error instanceof Refused ? error.message : error instanceof TypeError ? lost : String(error);
  if (status.textContent !== text) status.textContent = text;
}

async function loadRuns() {
  const list = await get("/api/runs");
  if (list === state.list) return;
  state.list = list;
  document.title = list.title;
  $("title").textContent = list.title.replace(/ - hookbus$/, "");
  for (const run of list.runs) {
    if (!state.colours.has(run.name)) state.colours.set(run.name, colour(state.colours.size));
    if (!state.shown.has(run.name)) {
      const count = [...state.shown.values()].filter(Boolean).length;
      state.shown.set(run.name, count < MOST_SHOWN);
    }
  }
  if (!list.runs.some((run) => run.name === state.focus)) state.focus = list.runs[0]?.name ?? null;
  const live = list.runs.find((run) => run.is_live);
  state.isOver = Boolean(live) && live.state !== "running";
  $("requests").hidden = list.read_only;
  $("runs").hidden = list.runs.length < 2 && Boolean(live);
  showProgress(live);
  showRuns();
  showNames();
  showStatus(live);
}

function showStatus(live) {
  const { runs, left_out: leftOut } = state.list;
  const status = $("status");
  status.classList.remove("bad");
  const reading = runs.filter((run) => run.state === "reading").length;
  const text = live
    ? `${live.state}, step ${number(live.step)}`
    : `${runs.length} training${runs.length === 1 ? "" : "s"}` +
      (reading ? `, reading ${reading}` : "") +
      (leftOut ? `; ${leftOut} more are not shown` : "");
  if (status.textContent !== text) status.textContent = text;
}

function stateOf(run) {
  if (run.state !== "silent") return run.state;
  return `silent for ${duration(run.silent_secs)}`;
}

function showRuns() {
  const body = $("run-list").tBodies[0];
  const sought = $("find-run").value.toLowerCase();
  const rows = new Map([...body.rows].map((row) => [row.dataset.run, row]));
  const wanted = state.list.runs.filter((run) => run.name.toLowerCase().includes(sought));
  for (const run of wanted) {
    const row = rows.get(run.name) ?? newRow(run.name);
    row.show.checked = state.shown.get(run.name);
    row.open.setAttribute("aria-pressed", String(run.name === state.focus));
    const values = Object.entries(run.values).map(([name, value]) => `${name} ${number(value)}`).join(", ");
    const texts = [stateOf(run), number(run.step), values];
    texts.forEach((text, at) => {
      const cell = row.cells[at + 2];
      if (cell.textContent !== text) cell.textContent = text;
    });
    row.cells[2].className = `state-${run.state}`;
    if (body.rows[wanted.indexOf(run)] !== row) body.append(row);
    rows.delete(run.name);
  }
  for (const row of rows.values()) row.remove();
}

function newRow(name) {
  const show = el("input", { type: "checkbox", "aria-label": `Show ${name} in the charts` });
  show.addEventListener("change", () => {
    state.shown.set(name, show.checked);
    showNames();
    soon();
  });
  const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
  swatch.style.background = state.colours.get(name);
  const open = el("button", { type: "button", class: "link", "aria-label": `Details of ${name}`, onclick: () => {
    state.focus = name;
    showRuns();
    loadDetails().catch(tell);
  } }, name);
  const row = el("tr", {}, el("td", {}, show), el("td", { class: "name" }, swatch, open),
    el("td"), el("td", { class: "number" }), el("td"));
  row.dataset.run = name;
  return Object.assign(row, { show, open });
}

// The charts that are wanted: values of the shown trainings, the usual ones first.
function showNames() {
  const { runs, series } = state.list;
  const sought = $("find").value.toLowerCase();
  const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  const names = Object.keys(series)
    .filter((name) => name.toLowerCase().includes(sought))
    .filter((name) => series[name].some((at) => state.shown.get(runs[at].name)))
    .sort((a, b) => rank(a) - rank(b) || a.includes("/") - b.includes("/") || a.localeCompare(b, "en"));
  board.have(names);
}

// The next charts whose points are not those that are wanted now, and how to ask for them.
function nextBatch() {
  const { runs, series } = state.list;
  const shown = runs.filter((run) => state.shown.get(run.name));
  const charts = board.visible;
  if (!charts.length || !shown.length) return null;
  const options = { axis: $("axis").value, log: $("log").checked, colours: state.colours, ...board.look };
  const query = new URLSearchParams({ axis: options.axis, smooth: $("smooth").value, width: options.width });
  for (const run of shown) query.append("run", run.name);
  if (board.low !== null) {
    query.set("low", board.low);
    query.set("high", board.high);
  }
  const look = `${query} ${options.log} ${options.faint}`;
  const wanted = ({ name }) => {
    const having = (series[name] ?? []).map((at) => runs[at]).filter((run) => state.shown.get(run.name));
    return `${look} ${having.map((run) => run.version)}`;
  };
  const stale = charts
    .filter((chart) => chart.asked !== wanted(chart))
    .sort((a, b) => a.shownAt - b.shownAt) // while all change, each has its turn
    .slice(0, Math.max(1, Math.floor(MOST_LINES / shown.length)));
  for (const chart of stale) query.append("name", chart.name);
  return stale.length ? { query, options, asked: new Map(stale.map((chart) => [chart.name, wanted(chart)])) } : null;
}

// Bring the charts up to date, some at a time; controls that change meanwhile count for the next.
async function drawCharts() {
  if (isDrawing || !state.list) return;
  isDrawing = true;
  try {
    for (let batch = nextBatch(); batch; batch = nextBatch()) {
      const { query, options, asked } = batch;
      for (const data of await points(`/api/series?${query}`)) {
        if (performance.now() - frameBegan > BUDGET_MS) frameBegan = await new Promise(nextFrame);
        const chart = board.charts.get(data.name);
        if (!chart) continue;
        chart.asked = asked.get(data.name);
        chart.show(data, options);
        await null; // until its canvas is drawn, which counts
      }
    }
    performance.mark("charts-drawn");
  } finally {
    isDrawing = false;
  }
}

async function loadDetails() {
  if (state.focus === null) return;
  const query = new URLSearchParams({ run: state.focus });
  for (const part of openParts()) query.append("part", part);
  const details = await get(`/api/details?${query}`);
  showDetails(details);
  if (!state.list.read_only) showRequests(details, state.isOver);
}

async function update() {
  let wait = EVERY_MS;
  try {
    if (!document.hidden) {
      await loadRuns();
      await Promise.all([drawCharts(), loadDetails()]);
    }
  } catch (error) {
    tell(error);
    wait = AFTER_ERROR_MS;
  }
  setTimeout(update, wait);
}

for (const id of ["axis", "log"]) $(id).addEventListener("change", () => (id === "axis" ? board.zoom(null, null) : soon()));
$("smooth").addEventListener("input", () => {
  $("smooth-shown").textContent = $("smooth").value;
  soon();
});
$("reset").addEventListener("click", () => board.zoom(null, null));
$("find").addEventListener("input", () => state.list && showNames());
$("find-run").addEventListener("input", () => state.list && showRuns());
for (const [id, shows] of [["all-runs", true], ["no-runs", false]]) {
  $(id).addEventListener("click", () => {
    for (const name of state.shown.keys()) state.shown.set(name, shows);
    showRuns();
    showNames();
    soon();
  });
}
$("controls").addEventListener("submit", (event) => event.preventDefault());
for (const each of document.querySelectorAll("details[data-part]")) {
  each.addEventListener("toggle", () => loadDetails().catch(tell));
}
document.addEventListener("visibilitychange", () => document.hidden || soon());
listen();
update();
