// Pays the orders that are due, each under an intent: node work.js URL
import { randomUUID } from "node:crypto";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { LeaseOutcome, Outcome } from "@dibs-go/serve/intent_pb.js";
import type { Delivery, SettlementSchema } from "@dibs-go/serve/queue_pb.js";
import { again, connect, type Due } from "./api.js";

const { intents, queues } = connect(process.argv[2]);
const queue = { category: "standing" };
const lease = { seconds: 3n };

async function pay({ deliveryId, item }: Delivery): Promise<MessageInitShape<typeof SettlementSchema>> {
  const later = { deliveryId, action: { case: "defer" as const, value: { delay: { nanos: 200_000_000 } } } };
  const done = { deliveryId, action: { case: "complete" as const, value: {} } };
  const order: Due = JSON.parse(item!.dataJson);
  const name = { category: "payment:intent", scope: order.account, key: `${order.order}/${order.month}` };
  const sessionId = randomUUID();
  const answer = await again(() => intents.reserve({ name, sessionId, contentJson: item!.dataJson, ttl: lease }));
  if (answer.outcome === Outcome.DONE) return done;
  if (answer.outcome !== Outcome.RESERVED) return later;
  const paid = { id: randomUUID(), type: "Paid", dataJson: JSON.stringify({ ...order, payer: "typescript" }) };
  const confirmed = await again(() => intents.confirm({
    lease: answer.lease, resultJson: '{"paid":true}', writes: [{ stream: `payment-${order.account}`, expectedVersion: -2n, messages: [paid] }],
  }));
  return confirmed.outcome === LeaseOutcome.OK ? done : later;
}

async function loop() {
  for (let settlements: MessageInitShape<typeof SettlementSchema>[] = []; ; ) {
    const receiveId = randomUUID();
    const { deliveries } = await again((attempt) =>
      queues.receive({ queue, receiveId, attempt, maxItems: 10, maxWait: { seconds: 2n }, visibilityTimeout: lease, settlements }));
    settlements = await Promise.all(deliveries.map(pay));
  }
}

await Promise.all([loop(), loop()]);
