// The page says so when its server does not answer. A connection that was made comes back by itself;
// one that was not is tried again.
"use strict";
const away = document.getElementById("away");
const view = document.getElementById("view");
const tell = (gone) => { away.hidden = !gone; };
const retry = () => { tell(true); setTimeout(() => htmx.trigger(view, "again"), 2000); };
document.addEventListener("htmx:sse:error", () => tell(true));
document.addEventListener("htmx:sse:after:connection", () => tell(false));
view.addEventListener("htmx:error", retry);
view.addEventListener("htmx:response:error", retry);
