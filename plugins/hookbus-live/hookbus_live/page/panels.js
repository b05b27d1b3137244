// Shows one training: progress, checkpoints, log, hooks, hyperparameters, outcome.

import { post } from "./api.js";
import { $, bytes, clock, day, duration, el, fill, number, table } from "./dom.js";

export function showProgress(run) {
  $("progress").hidden = !run?.is_live;
  if (!run?.is_live) return;
  const bar = $("bar");
  if (run.last_step === null) bar.removeAttribute("value");
  else [bar.max, bar.value] = [run.last_step || 1, run.step];
  const isOver = run.state !== "running";
  if (isOver) [bar.max, bar.value] = [1, 1];
  const shown = {
    State: run.state,
    Step: run.last_step === null ? number(run.step) : `${number(run.step)} of ${number(run.last_step)}`,
    Epoch: run.epoch === null || run.epoch === undefined ? null : number(run.epoch),
    "Steps per second": run.rate === null ? null : number(run.rate, 3),
    "Time left": run.secs_left === null ? null : duration(run.secs_left),
  };
  const entries = Object.entries(shown).filter(([, value]) => value !== null);
  $("numbers").replaceChildren(
    ...entries.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

function checkpointsOf(details) {
  const rows = [...(details.checkpoints ?? [])].reverse().map((each) => {
    const state = el("span", { class: `state-${each.state}` }, each.state);
    const verify = el("button", { type: "button", "aria-label": `Verify ${each.name}`, onclick: async () => {
      state.textContent = "hashing …";
      const answer = await post("/api/verify", { run: details.name, checkpoint: each.name });
      state.textContent = answer.state;
      state.className = `state-${answer.state === "good" ? "good" : "bad"}`;
    } }, "Verify");
    const kept = Object.entries(each.kept ?? {}).map(([who, why]) => `${who} (${why})`).join(", ");
    const values = Object.entries(each.values ?? {}).map(([name, value]) => `${name} ${number(value)}`).join(", ");
    return [
      each.name,
      each.saved_at ? day(each.saved_at) : "?",
      bytes(each.bytes),
      `${each.saved_by ?? "?"} (${each.why ?? "?"})`,
      kept || "–",
      values || "–",
      each.ended ?? "–",
      state,
      verify,
    ];
  });
  if (!rows.length) return el("p", {}, "There are no checkpoints.");
  const heads = ["Checkpoint", "Saved", "Size", "By", "Kept by", "Values", "Ended", "State", ""];
  return table("The newest first", heads, rows, [2]);
}

function logOf(details) {
  if (!details.log?.length) return el("p", {}, "Log lines are shown of a live training.");
  const rows = details.log.map((line) => [
    clock(line.time),
    el("span", { class: `level-${line.level}` }, line.level),
    line.event,
    line.fields,
  ]);
  return table("The newest first", ["Time", "Level", "Line", "Values"], rows);
}

function hooksOf(details) {
  const { hooks } = details;
  if (!hooks) return el("p", {}, "The time of hooks is shown of a live training.");
  if (!hooks.steps) return el("p", {}, "Watching the hooks …");
  const rows = hooks.plugins.map((each) => [
    each.name,
    number((1e6 * each.seconds) / hooks.steps, 3),
    `${number((100 * each.seconds) / hooks.seconds, 2)} %`,
    each.asks.join(", ") || "–",
  ]);
  const whole = number((1e3 * hooks.seconds) / hooks.steps, 3);
  const caption = `Of ${number(hooks.steps)} watched steps of ${whole} ms; watching itself takes time`;
  return table(caption, ["Hook", "µs a step", "Share", "Asks for"], rows, [1, 2]);
}

function valuesOf(document, nothing) {
  const entries = Object.entries(document ?? {});
  if (!entries.length) return el("p", {}, nothing);
  const rows = entries.map(([name, value]) => [
    name,
    typeof value === "object" ? el("pre", {}, JSON.stringify(value, null, 1)) : String(value),
  ]);
  return table("", ["Name", "Value"], rows);
}

const PARTS = {
  checkpoints: checkpointsOf,
  "log-lines": logOf,
  hooks: hooksOf,
  params: ({ params: { program, ...params } }) => valuesOf(params, "There are none."),
  program: ({ params: { program } }) => valuesOf(program, "No file tells of it."),
  outcome: (details) => valuesOf(details.outcome, "The training has not ended, or was killed."),
};

export const openParts = () =>
  [...document.querySelectorAll("details[data-part][open]")].map((each) => each.dataset.part);

export function showDetails(details) {
  $("details").hidden = false;
  $("details-title").textContent = `Details of ${details.name}`;
  fill($("problems"), () => details.problems.map((each) => el("li", {}, each)), JSON.stringify(details.problems));
  for (const [id, show] of Object.entries(PARTS)) {
    const place = $(id);
    const part = place.closest("details").dataset.part;
    if (!place.closest("details").open) continue;
    const key = JSON.stringify([details.name, details[part] ?? details.params]);
    fill(place, () => [show(details)], key);
  }
}
