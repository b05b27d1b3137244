// Asks the live training for something, and shows what became of it.

import { post } from "./api.js";
import { $, clock, el, fill, number } from "./dom.js";

let isBusy = false;

async function ask(document) {
  if (isBusy) return;
  isBusy = true;
  $("answer").textContent = "Waiting for the next step …";
  try {
    const { asked, state, told } = await post("/api/requests", document);
    $("answer").textContent = state === "waiting" ? `${asked}: waits for the next step` : `${asked}: ${state}, ${told}`;
  } catch (error) {
    $("answer").textContent = `Refused: ${error.message}`;
  } finally {
    isBusy = false;
  }
}

function confirmed(action, title) {
  const dialog = $("confirm");
  $("confirm-title").textContent = title;
  $("why").value = "";
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue === "stop") ask({ action, why: $("why").value });
  };
  dialog.showModal();
}

const valueOf = (id) => {
  const text = $(id).value.trim().replace(",", ".");
  return text === "" ? null : Number(text);
};

export function listen() {
  $("save").addEventListener("click", () => ask({ action: "save" }));
  $("stop").addEventListener("click", () => confirmed("stop", "Stop the training now?"));
  $("stop-after-epoch").addEventListener("click", () =>
    confirmed("stop-after-epoch", "Stop the training at the end of this epoch?"));
  $("assign").addEventListener("submit", (event) => {
    event.preventDefault();
    ask({ action: "assign", name: $("variable").value, value: valueOf("value") });
  });
  $("follow").addEventListener("click", () =>
    ask({
      action: "follow",
      name: $("variable").value,
      to: valueOf("value"),
      steps: valueOf("steps"),
      shape: $("shape").value,
    }));
  $("hold").addEventListener("click", () => ask({ action: "hold", name: $("variable").value }));
}

export function showRequests(details, isOver) {
  const names = Object.keys(details.variables ?? {});
  const select = $("variable");
  const chosen = select.value;
  fill(select, () => names.map((name) => el("option", {}, name)), JSON.stringify(names));
  if (names.includes(chosen)) select.value = chosen;
  $("assign").hidden = !names.length;
  const schedule = details.schedules?.[select.value];
  const now = details.variables?.[select.value];
  $("current").textContent = (now === null ? "" : `now ${number(now)}`) + (schedule ? ` (${schedule})` : "");
  $("hold").disabled = !schedule;
  for (const button of $("requests").querySelectorAll("button")) {
    if (button.id !== "hold") button.disabled = isOver;
  }
  const asked = details.requests ?? [];
  $("asked").hidden = !asked.length;
  fill($("asked").tBodies[0], () => asked.map((each) =>
    el("tr", {},
      el("td", {}, clock(each.time)),
      el("td", {}, each.asked),
      el("td", { class: `state-${each.state}` }, each.state),
      el("td", {}, each.told))), JSON.stringify(asked));
}
