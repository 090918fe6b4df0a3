import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { IntentService } from "@dibs-go/serve/intent_pb.js";
import { QueueService } from "@dibs-go/serve/queue_pb.js";

export type Due = { order: string; account: string; month: string; cents: number; by: string };

export function connect(baseUrl: string) {
  const transport = createGrpcTransport({ baseUrl, defaultTimeoutMs: 20_000 });
  return { intents: createClient(IntentService, transport), queues: createClient(QueueService, transport) };
}

// again sends a call again until it is answered, which the ids in it make harmless.
export async function again<T>(call: (attempt: number) => Promise<T>): Promise<T> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await call(attempt);
    } catch (e) {
      const code = ConnectError.from(e).code;
      if (attempt === 100 || ![Code.Unavailable, Code.Canceled, Code.DeadlineExceeded, Code.Internal, Code.Unknown, Code.Aborted].includes(code)) throw e;
      await new Promise((r) => setTimeout(r, Math.min(1000, 20 * 2 ** attempt)));
    }
  }
}
