// Sends orders, each batch twice: node produce.js URL FILE
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { again, connect, type Due } from "./api.js";

const [, , url, file] = process.argv;
const { queues } = connect(url);
const orders: Due[] = readFileSync(file, "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line));

// The id follows from the order, so that a copy is the same item.
function idOf(o: Due) {
  const h = createHash("sha256").update(o.order + o.month).digest("hex");
  return `${h.slice(0, 8)}-${h.slice(8, 12)}-5${h.slice(13, 16)}-8${h.slice(17, 20)}-${h.slice(20, 32)}`;
}

while (orders.length > 0) {
  const items = orders.splice(0, 50).map((o) => ({ id: idOf(o), type: "Due", key: o.account, dataJson: JSON.stringify(o) }));
  for (let copy = 0; copy < 2; copy++) await again(() => queues.produce({ queue: { category: "standing" }, items }));
}
setInterval(() => {}, 1000); // until it is stopped
