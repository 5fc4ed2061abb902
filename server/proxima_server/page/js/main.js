// Views, and the live document that feeds them.
import { ask } from "./access.js";
import * as chat from "./chat.js";
import { byId } from "./dom.js";
import { follow } from "./feed.js";
import * as overview from "./overview.js";
import * as scheduler from "./scheduler.js";
import { showGateway, showTrouble } from "./status.js";

const VIEWS = ["overview", "scheduler", "chat"];
let latest = null;

function showView() {
  const chosen = VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : VIEWS[0];
  for (const view of VIEWS) byId(`view-${view}`).hidden = view !== chosen;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${chosen}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (chosen === "chat") chat.loadModels();
  if (latest) overview.show(latest);
}

function watch() {
  follow({
    onDocument(live) {
      latest = live;
      showGateway(live);
      overview.show(live);
    },
    onLost: (message) => showTrouble("no connection", `${message}. Trying again.`),
    async onRefused(status, message) {
      if (status === 401 && (await ask("admin", message))) return true;
      showTrouble("live view refused", message, { name: "Try again", run: watch });
      return false;
    },
  });
}

addEventListener("hashchange", showView);
addEventListener("resize", () => latest && overview.show(latest));
chat.start();
scheduler.start();
showView();
watch();
