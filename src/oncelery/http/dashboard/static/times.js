// Instants as how long ago they were; the whole instant is in the title, and in the reader's own time zone.

const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "short" });
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

function ago(seconds) {
  if (Math.abs(seconds) < 1.5) return "now";
  const [unit, length] = UNITS.find(([, length]) => Math.abs(seconds) >= length) ?? UNITS.at(-1);
  return relative.format(-Math.trunc(seconds / length), unit);
}

export function tellTimes() {
  const now = Date.now();
  for (const time of document.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    const text = ago((now - moment) / 1000);
    if (time.textContent !== text) time.textContent = text;
    const title = whole.format(moment);
    if (time.title !== title) time.title = title;
  }
}
