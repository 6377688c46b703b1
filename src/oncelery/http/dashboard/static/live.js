// While a page is looked at, its address is also a stream of itself. A page with a form that would be sent is left alone.
import { morph } from "./morph.js";

const page = document.getElementById("page");
const status = document.getElementById("live");
let source = null;

function say(state, text) {
  if (status.textContent === text) return;
  status.dataset.state = state;
  status.textContent = text;
  status.hidden = !text;
}

function open(changed) {
  if (source) return;
  source = new EventSource(location.href);
  source.onmessage = (event) => {
    say("live", "Live");
    const part = document.createElement("div");
    part.innerHTML = event.data;
    morph(page, part);
    changed();
  };
  source.onerror = () => {
    say("away", "Not live: the service does not answer");
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
