// The stream of messages. It is read with fetch, so that a token is in a header and never in a URL.

const FIRST_RETRY_S = 1;
const MAX_RETRY_S = 10;
const SILENCE_MS = 25000; // the server sends something at least every ten seconds

let token = ""; // only in memory: lost when the page is closed

export function useToken(value) { token = value; }
export function hasToken() { return token !== ""; }

function headers(more = {}) {
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

async function bodyOf(response) {
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw Object.assign(new Error(body.error || `the manager answered ${response.status}`), { status: response.status });
  return body;
}

/** Return what the token permits, and whether viewing needs a token. */
export async function access() {
  return bodyOf(await fetch("/api/access", { headers: headers() }));
}

/** Ask a teacher to leave. */
export async function drain(service, teacher) {
  const body = JSON.stringify({ service, teacher });
  return bodyOf(await fetch("/api/drain", { method: "POST", headers: headers({ "Content-Type": "application/json" }), body }));
}

export class Feed {
  #abort = null;
  #wake = null;

  /** `onMessage(object)` for each message; `onLink(state, text)`, state: "live", "lost" or "token". */
  constructor(onMessage, onLink) {
    this.onMessage = onMessage;
    this.onLink = onLink;
  }

  /** Read without end; reconnect after each end of the stream. */
  async run() {
    let retryS = FIRST_RETRY_S;
    for (;;) {
      try {
        await this.#read(() => { retryS = FIRST_RETRY_S; });
        await this.#wait("lost", "disconnected", retryS);
      } catch (error) {
        if (error.status === 401 || error.status === 403) await this.#wait("token", error.message, Infinity);
        else await this.#wait("lost", error.status ? error.message : "disconnected", retryS);
      }
      retryS = Math.min(MAX_RETRY_S, retryS * 2);
    }
  }

  /** Reconnect now. */
  restart() {
    this.#abort?.abort();
    this.#wake?.();
  }

  async #read(onFirst) {
    this.#abort = new AbortController();
    let watchdog = setTimeout(() => this.#abort.abort(), SILENCE_MS);
    try {
      const response = await fetch("/api/feed", { headers: headers(), signal: this.#abort.signal });
      if (!response.ok) await bodyOf(response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(watchdog);
        watchdog = setTimeout(() => this.#abort.abort(), SILENCE_MS);
        const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim());
          if (!data.length) continue;
          onFirst();
          this.onLink("live", "live");
          this.onMessage(JSON.parse(data.join("\n")));
        }
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  async #wait(state, text, seconds) {
    const until = Date.now() + seconds * 1000;
    let woken = false;
    while (!woken && Date.now() < until) {
      const left = Math.ceil((until - Date.now()) / 1000);
      this.onLink(state, Number.isFinite(left) ? `${text}, retrying in ${left} s` : text);
      await new Promise((resolve) => {
        const timer = Number.isFinite(left) ? setTimeout(resolve, 500) : 0;
        this.#wake = () => { woken = true; clearTimeout(timer); resolve(); };
      });
    }
    this.#wake = null;
    if (!woken) this.onLink(state, `${text}, retrying`);
  }
}
