// While a page is looked at, its address is also a stream of itself. A page with a form that would be sent is left alone.
import { morph } from "./morph.js";

const page = document.getElementById("page");
const status = document.getElementById("live");
let source = null;
let worry = null;

function say(state, text) {
  if (status.textContent === text) return;
  status.dataset.state = state;
  status.textContent = text;
  status.hidden = !text;
}

function open(changed) {
  if (source) return;
  source = new EventSource(location.href);
  source.onopen = () => {
    clearTimeout(worry);
    worry = null;
  };
  source.onmessage = (event) => {
    say("live", "Live");
    const part = document.createElement("div");
    part.innerHTML = event.data;
    const focused = document.activeElement;
    morph(page, part);
    // Moving an element takes its focus away.
    if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
    changed();
  };
  source.onerror = () => {
    // Each stream ends after a while, and the next one begins.
    worry ??= setTimeout(() => say("away", "Not live: the service does not answer"), 2000);
    if (source.readyState !== EventSource.CLOSED) return;
    close();
    setTimeout(() => document.hidden || open(changed), 3000);
  };
}

function close() {
  source?.close();
  source = null;
}

export function follow(changed) {
  if (document.querySelector("main .card")) return;
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open(changed)));
  addEventListener("pagehide", close);
  if (!document.hidden) open(changed);
}
