// What a service in Node.js does with a message store, through the npm package
// message-db-connector and, for what that has no method for, through pg as the
// package calls it. Prints one line of JSON for each step.
const { Pool } = require('pg');
const { Message, MessageDbReader, MessageDbWriter, MessageStore, Subscription } = require('message-db-connector');
const { DB } = require('message-db-connector/lib/commonjs/message-db');

const pgConnectionConfig = {
  host: process.env.PGHOST, port: process.env.PGPORT, user: 'message_store', database: process.env.PGDATABASE,
};
const id = (n) => `00000000-0000-4000-8000-${String(n).padStart(12, '0')}`;
const print = (step, result) => console.log(JSON.stringify({ step, result }));
const told = (promise) => promise.then((r) => r, (e) => ({ error: e.name, code: e.code, message: e.message }));
const seen = (m) => m && ({
  id: m.id, stream: m.streamName, type: m.type, position: m.position, globalPosition: m.globalPosition,
  data: m.data, metadata: m.metadata, hasTime: Math.abs(Date.now() - Date.parse(m.time)) < 24 * 3600 * 1000,
});
const message = (n, streamName, type, data = {}, metadata = {}) => new Message({ id: id(n), streamName, type, data, metadata });

async function main() {
  // Make keeps to postgresql://message_store@localhost:5432/message_store.
  const reader = await MessageDbReader.Make({ pgConnectionConfig });
  const writer = await MessageDbWriter.Make({ pgConnectionConfig });
  reader.db = await DB.Make({ pgConnectionConfig });
  writer.db = reader.db;
  const store = new MessageStore({ reader, writer });
  const command = 'account:command-123';

  print('write', (await told(store.write(message(1, command, 'Deposit', { amount: 10 }, { correlationStreamName: 'transfer-7' }), -1))).id);
  print('write at the version', (await told(store.write(message(2, command, 'Deposit', { amount: 20 }), 0))).id);
  print('write at any version', (await told(store.write(message(3, 'account:command-456', 'Deposit', { amount: 1.5 })))).id);
  print('version conflict', await told(store.write(message(4, command, 'Deposit', { amount: 10 }), -1)));
  print('the same id again', await told(store.write(message(1, command, 'Deposit', { amount: 10 }))));
  print('stream', (await store.getStreamMessages(command)).map(seen));
  print('stream from a position', (await store.getStreamMessages(command, 1, 10)).map(seen));
  print('stream that is not there', (await store.getStreamMessages('account:command-789')).map(seen));
  print('category', (await store.getStreamMessages('account:command')).map(seen));
  print('category of nothing', (await store.getStreamMessages('account')).map(seen));
  print('last', seen(await store.getLastMessage(command)));
  print('last of nothing', seen(await store.getLastMessage('account-123')));
  print('entity', await store.fetch(command, {
    name: 'sum', init: { amount: 0 }, handlers: { Deposit: (sum, m) => ({ amount: sum.amount + m.data.amount }) },
  }));

  // A consumer that records its position after each message, stopped and started.
  const handled = [];
  for (const until of [2, 3]) {
    const subscription = new Subscription({ messageStore: store, streamName: 'account:command', subscriberId: 'sums', batchSize: 1, intervalTimeMs: 1 });
    subscription.registerHandler(async (m) => {
      handled.push(m.id);
      if (handled.length === until) subscription.signalStop();
    }, 'Deposit');
    await subscription.start();
  }
  print('handled', handled);
  print('position', seen(await store.getLastMessage('account:command+position-sums')).data);

  // What the package has no method for.
  const pool = new Pool(pgConnectionConfig);
  const query = async (sql, values) => (await pool.query(sql, values)).rows;
  for (let n = 1; n <= 10; n += 1) {
    await query('SELECT write_message($1, $2, $3, $4, $5, $6)', [id(100 + n), `item-${n}`, 'Added', { n }, null, -1]);
  }
  for (const member of [0, 1, 2]) {
    print(`member ${member}`, (await query('SELECT * FROM get_category_messages($1, $2, $3, $4, $5, $6)', ['item', 0, 1000, null, member, 3])).map((m) => m.stream_name));
  }
  print('member of no group', await told(query('SELECT * FROM get_category_messages($1, $2, $3, $4, $5, $6)', ['item', 0, 1000, null, 3, 3])));
  print('correlated', (await query('SELECT * FROM get_category_messages($1, $2, $3, $4)', ['account:command', 0, 1000, 'transfer'])).map((m) => m.id));
  print('condition', await told(query('SELECT * FROM get_stream_messages($1, $2, $3, $4)', [command, 0, 10, 'position = 1'])));
  print('versions', await query('SELECT stream_version($1) AS some, stream_version($2) AS none', [command, 'account-123']));
  print('names', await query('SELECT id($1), cardinal_id($1), category($1), is_category($1), hash_64($1), message_store_version()', ['account:command-123+AAA']));
  print('raw row', (await query('SELECT * FROM message_store.get_last_stream_message($1)', [command])).map(({ time, ...row }) => ({ ...row, time: typeof time })));
  print('view', await query('SELECT id, stream_name, type, position, global_position, data, metadata FROM messages WHERE stream_name = $1 ORDER BY position', [command]));

  // Two at once, in one transaction each: one of them is first.
  const attempts = await Promise.all(Array.from({ length: 8 }, async (_, n) => {
    const client = await pool.connect();
    try {
      await client.query('BEGIN');
      await client.query('SELECT write_message($1, $2, $3, $4, $5, $6)', [id(200 + n), 'account:command-123+AAA', 'Deposit', { amount: 10 }, null, -1]);
      await client.query('SELECT write_message($1, $2, $3, $4, $5, $6)', [id(300 + n), 'account:command-123+AAA', 'Deposited', { amount: 10 }, null, 0]);
      await client.query('COMMIT');
      return 'first';
    } catch (e) {
      await client.query('ROLLBACK');
      return `${e.code} ${e.message}`;
    } finally {
      client.release();
    }
  }));
  print('attempts', attempts.sort());
  await pool.end();
}

main().then(() => process.exit(0), (e) => { console.error(e); process.exit(1); });
