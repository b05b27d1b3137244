// Talks to the server: the token goes with each request, and what is known is not sent again.

const KEY = "hookbus-token";
const known = new Map();
const MOST_KNOWN = 6;

// The token comes in the part of the address behind #, which goes to no server.
const given = location.hash.slice(1);
if (/^[\w-]{16,}$/.test(given)) {
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
}

const token = sessionStorage.getItem(KEY) ?? "";

export class Refused extends Error {}

async function answerOf(path, options = {}) {
  const headers = { ...options.headers, Authorization: `Bearer ${token}` };
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.ok || answer.status === 304) return answer;
  const { error } = await answer.json().catch(() => ({ error: answer.statusText }));
  throw new Refused(error);
}

async function changedOf(path, read) {
  const before = known.get(path);
  const headers = before ? { "If-None-Match": before.tag } : {};
  const answer = await answerOf(path, { headers });
  if (answer.status === 304) return before.value;
  const value = await read(answer);
  known.delete(path);
  known.set(path, { tag: answer.headers.get("etag") ?? "", value });
  if (known.size > MOST_KNOWN) known.delete(known.keys().next().value);
  return value;
}

export const get = (path) => changedOf(path, (answer) => answer.json());

// The points of some charts: [{name, runs, exact, low, high, x, lines}].
export function points(path) {
  return changedOf(path, async (answer) => {
    const buffer = await answer.arrayBuffer();
    const size = new DataView(buffer).getUint32(0, true);
    const header = new TextDecoder().decode(new Uint8Array(buffer, 4, size));
    let at = 4 + size;
    const next = (length) => {
      const numbers = new Float64Array(buffer, at, length);
      at += 8 * length;
      return numbers;
    };
    return JSON.parse(header).map((chart) => {
      const x = next(chart.points);
      return { ...chart, x, lines: chart.runs.map(() => next(chart.points)) };
    });
  });
}

export async function post(path, document) {
  const answer = await answerOf(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(document),
  });
  return answer.json();
}
