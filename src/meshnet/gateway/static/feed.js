// The live state: one stream, taken up again for as long as the page is open.

import { events, KeyNeeded, request } from "/dashboard/static/api.js";

const PAUSES = [1000, 2000, 4000, 8000];
const KEPT_POINTS = 600;
const SILENCE = 30000;

const sleep = (time) => new Promise((done) => setTimeout(done, time));

// Calls `show(state, points)` for each event, `lost(error)` when the stream ends, and `askKey(why)`,
// which gives a promise, when a key is needed.
export async function follow({ show, lost, askKey }) {
  for (let failures = 0; ; ) {
    try {
      await read((state, points) => {
        failures = 0;
        show(state, points);
      });
      lost(new Error("the gateway ended the connection"));
    } catch (error) {
      if (error instanceof KeyNeeded) {
        await askKey(error.message);
        continue;
      }
      lost(error);
    }
    await sleep(PAUSES[Math.min(failures, PAUSES.length - 1)]);
    failures += 1;
  }
}

async function read(show) {
  const leaving = new AbortController();
  let timer = 0;
  const awake = () => {
    clearTimeout(timer);
    timer = setTimeout(() => leaving.abort(), SILENCE);
  };
  try {
    awake();
    const response = await request("/dashboard/events", { signal: leaving.signal });
    let points = [];
    for await (const text of events(response)) {
      awake();
      const state = JSON.parse(text);
      if (state.history) points = state.history;
      else points.push(state.point);
      if (points.length > KEPT_POINTS) points.splice(0, points.length - KEPT_POINTS);
      show(state, points);
    }
  } finally {
    clearTimeout(timer);
    leaving.abort();
  }
}
