// Pays orders, each once: produces them, and works on them under an intent each.
//
//	node pay.js http://127.0.0.1:7070
import { createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { randomUUID } from "node:crypto";
import { IntentService, LeaseOutcome, Outcome } from "@dibs-go/serve/intent_pb.js";
import { QueueService, SettlementOutcome } from "@dibs-go/serve/queue_pb.js";

const [, , baseUrl = "http://127.0.0.1:7070", key = process.env.DIBS_KEY] = process.argv;
const transport = createGrpcTransport({
  baseUrl,
  interceptors: [(next) => (call) => (key && call.header.set("Authorization", `Bearer ${key}`), next(call))],
});
const intents = createClient(IntentService, transport);
const queues = createClient(QueueService, transport);
const queue = { category: "typescript" };

await queues.produce({
  queue,
  items: [1, 2, 3].map((n) => ({ id: randomUUID(), type: "Pay", dataJson: JSON.stringify({ order: n, amount: 10 * n }) })),
});
for (let paid = 0; paid < 3; ) {
  const { deliveries } = await queues.receive({ queue, receiveId: randomUUID(), maxItems: 10, maxWait: { seconds: 10n } });
  for (const { deliveryId, item } of deliveries) {
    const order = JSON.parse(item!.dataJson);
    const name = { category: "typescript:intent", key: `order ${order.order} ${item!.id}` };
    const answer = await intents.reserve({ name, sessionId: randomUUID(), contentJson: item!.dataJson });
    if (answer.outcome === Outcome.RESERVED) {
      const resultJson = JSON.stringify({ receipt: order.order, token: String(answer.lease!.fencingToken) }); // here the money moves
      const confirmed = await intents.confirm({ lease: answer.lease, resultJson });
      console.log("order", order.order, LeaseOutcome[confirmed.outcome]);
    }
    const { outcomes } = await queues.settle({ queue, settlements: [{ deliveryId, action: { case: "complete", value: {} } }] });
    if (outcomes[0] === SettlementOutcome.DONE) paid++;
  }
}
console.log("paid 3 orders");
