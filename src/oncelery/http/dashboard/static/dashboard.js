// What a page does beyond its HTML. Each part works without the others, and every page works without all of them.
import { drawCharts } from "./charts.js";
import { offerCopies, offerChoosing } from "./forms.js";
import { follow } from "./live.js";
import { tellTimes } from "./times.js";

function refresh() {
  tellTimes();
  offerCopies();
  drawCharts();
}

addEventListener("load", drawCharts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawCharts(true));
refresh();
offerChoosing();
setInterval(tellTimes, 1000);
follow(refresh);
