// Everything that goes over HTTP, with the gateway's key where it has one.

const KEY = "meshnet-key";

export class KeyNeeded extends Error {}

export const keepKey = (key) => sessionStorage.setItem(KEY, key);

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key === null ? more : { ...more, authorization: `Bearer ${key}` };
}

// A response that is good; else throws what the gateway says is wrong.
export async function request(path, options = {}) {
  const response = await fetch(path, { ...options, headers: headers(options.headers) });
  if (response.ok) return response;
  let error = { message: `the gateway answered ${response.status}`, code: "" };
  try {
    error = (await response.json()).error;
  } catch {
    // Not from the gateway itself, such as a proxy's page: its status has to do.
  }
  if (response.status === 401) throw new KeyNeeded("This gateway asks for a key.");
  if (error.code === "operator_key_needed") throw new KeyNeeded("The dashboard needs an operator's key.");
  throw new Error(error.message);
}

export const get = async (path) => (await request(path)).json();

export function postOptions(body, more = {}) {
  return { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" }, ...more };
}

export const post = async (path, body = {}) => (await request(path, postOptions(body))).json();

export const cancelRequest = (id) => request(`/v1/requests/${encodeURIComponent(id)}`, { method: "DELETE" });

// The payloads of a stream of server-sent events, as text. Not with EventSource, which sends no key.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
