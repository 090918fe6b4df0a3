// The services from Node, by gRPC and by JSON over HTTP/1.1: what generated code may get wrong.
//
//	node --test built/test/services.js    with DIBS_URL
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test } from "node:test";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { IntentService, LeaseOutcome, Outcome } from "@dibs-go/serve/intent_pb.js";
import { QueueService, SettlementOutcome } from "@dibs-go/serve/queue_pb.js";
import { StoreService, WriteOutcome } from "@dibs-go/serve/store_pb.js";

const baseUrl = process.env.DIBS_URL!;
const transports = {
  "gRPC": createGrpcTransport({ baseUrl }),
  "gRPC-Web": createGrpcWebTransport({ baseUrl, httpVersion: "1.1" }),
  "JSON": createConnectTransport({ baseUrl, httpVersion: "1.1", useBinaryFormat: false }),
};

for (const [way, transport] of Object.entries(transports)) {
  const intents = createClient(IntentService, transport);
  const queues = createClient(QueueService, transport);
  const stores = createClient(StoreService, transport);
  const seconds = (n: number) => ({ seconds: BigInt(n) });

  test(`${way}: an intent is carried out once`, async () => {
    const name = { category: "ts:intent", key: randomUUID() };
    const content = JSON.stringify({ amount: 9007199254740993n.toString() });
    const reserve = (contentJson = content) => intents.reserve({ name, sessionId: randomUUID(), contentJson, ttl: seconds(60) });
    const mine = await reserve();
    assert.equal(mine.outcome, Outcome.RESERVED);
    assert.equal(typeof mine.lease!.fencingToken, "bigint");
    assert.equal((await reserve()).outcome, Outcome.HELD);
    assert.equal((await reserve('{"amount":1}')).outcome, Outcome.KEY_REUSED);
    assert.equal((await intents.extendLeases({ leases: [mine.lease!] })).results[0].outcome, LeaseOutcome.OK);
    for (let i = 0; i < 2; i++) {
      assert.equal((await intents.confirm({ lease: mine.lease, resultJson: '{"n":9007199254740993}' })).outcome, LeaseOutcome.OK);
    }
    assert.equal((await reserve()).intent!.resultJson, '{"n":9007199254740993}');
  });

  test(`${way}: waiting calls are served in their order, and a caller who hangs up has nothing`, async () => {
    const queue = { category: "ts" + randomUUID().replaceAll("-", "") };
    const produce = (n: number) => queues.produce({ queue, items: [{ id: randomUUID(), type: "Send", dataJson: JSON.stringify({ n }) }] });
    const waiting = async (n: number) => {
      while ((await queues.getQueue({ queue })).waitingReceives !== n) await new Promise((r) => setTimeout(r, 5));
    };
    const receive = (signal?: AbortSignal) => queues.receive({ queue, receiveId: randomUUID(), maxWait: seconds(30) }, { signal });
    const answers = [];
    for (let i = 0; i < 3; i++) {
      answers.push(receive());
      await waiting(i + 1);
    }
    for (let i = 0; i < 3; i++) await produce(i);
    const got = await Promise.all(answers);
    assert.deepEqual(got.map((r) => JSON.parse(r.deliveries[0].item!.dataJson).n), [0, 1, 2]);
    const { outcomes } = await queues.settle({
      queue, settlements: got.map((r) => ({ deliveryId: r.deliveries[0].deliveryId, action: { case: "complete" as const, value: {} } })),
    });
    assert.deepEqual(outcomes, [1, 1, 1].map(() => SettlementOutcome.DONE));
    const hangUp = new AbortController();
    const gone = receive(hangUp.signal).catch((e) => ConnectError.from(e).code);
    await waiting(1);
    hangUp.abort();
    assert.equal(await gone, Code.Canceled);
    await waiting(0);
    await produce(3);
    assert.equal((await receive()).deliveries[0].failures, 0);
  });

  test(`${way}: first write wins, and a follower goes on where it was`, async () => {
    const category = "ts" + randomUUID().replaceAll("-", "");
    const write = (n: number) =>
      stores.write({ writes: [{ stream: `${category}-${n}`, expectedVersion: -1n, messages: [{ id: randomUUID(), type: "T", dataJson: `{"n":${n}}` }] }] });
    for (let n = 0; n < 4; n++) assert.equal((await write(n)).outcome, WriteOutcome.WRITTEN);
    assert.equal((await write(0)).outcome, WriteOutcome.VERSION_CONFLICT);
    const seen: string[] = [];
    let fromPosition = 0n;
    for (const until of [2, 4]) {
      const stop = new AbortController();
      try {
        for await (const page of stores.followCategory({ category, fromPosition }, { signal: stop.signal })) {
          for (const m of page.messages.slice(0, until - seen.length)) {
            seen.push(m.dataJson);
            fromPosition = m.globalPosition + 1n;
          }
          if (seen.length >= until) stop.abort();
        }
      } catch (e) {
        assert.equal(ConnectError.from(e).code, Code.Canceled);
      }
    }
    assert.deepEqual(seen, [0, 1, 2, 3].map((n) => `{"n":${n}}`));
  });

  test(`${way}: bad input is named`, async () => {
    await assert.rejects(intents.reserve({ name: { category: "ts:intent", key: "k" }, sessionId: "s", contentJson: "not json" }), (e) => {
      assert.equal(ConnectError.from(e).code, Code.InvalidArgument);
      return true;
    });
  });
}
