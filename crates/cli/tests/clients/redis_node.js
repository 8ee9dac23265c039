// node-redis (`redis` of npm), unmodified, against a server that is killed and opened again in the middle: PORT.
//
// The conversation first, in both versions of the protocol, then writes without an end. After the line `loaded` the
// server may be killed; the client comes back by itself, and what was acknowledged is read again. The last line begins
// with `done`.
'use strict';
const assert = require('assert');
const { createClient, ErrorReply, MultiErrorReply, RESP_TYPES, WatchError } = require('redis');

const every = Buffer.from(Array.from({ length: 256 }, (_, at) => at));
const bytes = { [RESP_TYPES.BLOB_STRING]: Buffer };

async function strings(redis) {
  assert.strictEqual(await redis.set('greeting', 'hello'), 'OK');
  assert.strictEqual(await redis.get('greeting'), 'hello');
  assert.strictEqual(await redis.get('none'), null);
  assert.strictEqual(await redis.append('greeting', ', world'), 12);
  assert.strictEqual(await redis.getRange('greeting', 0, 4), 'hello');
  assert.strictEqual(await redis.setRange('greeting', 7, 'redis'), 12);
  assert.strictEqual(await redis.strLen('greeting'), 12);
  assert.strictEqual(await redis.mSet({ a: '1', b: '2' }), 'OK');
  assert.deepStrictEqual(await redis.mGet(['a', 'none', 'b']), ['1', null, '2']);
  assert.strictEqual(await redis.mSetNX({ b: '3', c: '3' }), 0);
  assert.strictEqual(await redis.incrBy('n', 41), 41);
  assert.strictEqual(await redis.decr('n'), 40);
  assert.strictEqual(await redis.incrByFloat('n', 0.5), '40.5');
  assert.strictEqual(await redis.getDel('a'), '1');
  assert.strictEqual(await redis.exists(['a', 'b']), 1);
}

async function binary(redis) {
  const raw = redis.withTypeMapping(bytes);
  await raw.set(every, every);
  assert((await raw.get(every)).equals(every));
  assert((await raw.keys('*')).some((key) => key.equals(every)));
  const large = Buffer.alloc(5 << 20, every);
  await raw.set('large', large);
  assert((await raw.get('large')).equals(large));
}

async function options(redis) {
  assert.strictEqual(await redis.set('k', '1', { condition: 'NX' }), 'OK');
  assert.strictEqual(await redis.set('k', '2', { condition: 'NX' }), null);
  assert.strictEqual(await redis.set('absent', '2', { condition: 'XX' }), null);
  assert.strictEqual(await redis.set('k', '3', { condition: 'XX', GET: true }), '1');
  assert.strictEqual(await redis.set('k', '4', { expiration: { type: 'EX', value: 100 } }), 'OK');
  assert.strictEqual(await redis.set('k', '5', { expiration: 'KEEPTTL' }), 'OK');
  const ttl = await redis.ttl('k');
  assert(ttl > 0 && ttl <= 100);
  assert.strictEqual(await redis.getEx('k', { type: 'PERSIST' }), '5');
  assert.strictEqual(await redis.ttl('k'), -1);
  assert.strictEqual(await redis.pExpire('k', 60000, 'NX'), 1);
  assert.strictEqual(await redis.expire('k', 10, 'GT'), 0);
  assert.strictEqual(await redis.set('brief', 'x', { expiration: { type: 'PX', value: 20 } }), 'OK');
  while (await redis.exists('brief'));
  assert.strictEqual(await redis.get('brief'), null);
}

async function transactions(redis, rival) {
  assert.deepStrictEqual(await redis.multi().set('x', 1).incr('x').get('x').exec(), ['OK', 2, '2']);
  await redis.watch('x');
  await rival.set('x', 'changed');
  await assert.rejects(redis.multi().set('x', 'mine').exec(), WatchError);
  assert.strictEqual(await redis.get('x'), 'changed');
  await redis.watch('x');
  assert.deepStrictEqual(await redis.multi().set('x', 'mine').exec(), ['OK']);
  const failed = await redis.multi().incr('x').get('x').exec().catch((error) => error);
  assert(failed instanceof MultiErrorReply, failed);
  assert.match(failed.replies[0].message, /not an integer/);
  assert.strictEqual(failed.replies[1], 'mine');
  await assert.rejects(redis.multi().set('x', 1).addCommand(['NONSENSE']).exec(), /ERR unknown command 'NONSENSE'/);
  assert.strictEqual(await redis.get('x'), 'mine');
}

async function pipelines(redis) {
  const pipeline = redis.multi();
  for (let at = 0; at < 3000; at += 1) pipeline.set(`p:${at}`, at).get(`p:${at}`);
  const answers = await pipeline.execAsPipeline();
  answers.forEach((answer, at) => assert.strictEqual(answer, at % 2 ? String((at - 1) / 2) : 'OK'));
  const mixed = redis.multi().set('t', 'x').incr('t').append('t', 'y');
  await assert.rejects(mixed.execAsPipeline(), /not an integer/);
  assert.strictEqual(await redis.get('t'), 'xy');
}

async function scans(redis) {
  const found = new Set();
  for await (const keys of redis.scanIterator({ MATCH: 'p:1*', COUNT: 100 })) keys.forEach((key) => found.add(key));
  const expected = Array.from({ length: 3000 }, (_, at) => `p:${at}`).filter((key) => key.startsWith('p:1'));
  assert.deepStrictEqual([...found].sort(), expected.sort());
}

async function errors(redis) {
  await redis.set('text', 'no number');
  await assert.rejects(redis.incr('text'), ErrorReply);
  await assert.rejects(redis.incr('text'), /ERR value is not an integer or out of range/);
  await assert.rejects(redis.sendCommand(['NONSENSE']), /ERR unknown command 'NONSENSE'/);
  await assert.rejects(redis.set('text', 'x', { expiration: { type: 'PX', value: 0 } }), /ERR invalid expire time in 'set' command/);
  await assert.rejects(redis.rename('none', 'x'), /ERR no such key/);
  assert.strictEqual(await redis.get('text'), 'no number');
}

async function administration(redis, _, protocol) {
  assert.strictEqual((await redis.hello()).proto, protocol);
  await redis.clientSetName('conversation');
  assert((await redis.clientList()).some(({ name, libName }) => name === 'conversation' && libName === 'node-redis'));
  assert.match(await redis.info('server'), /redis_version:7/);
  assert.strictEqual((await redis.configGet('maxmemory')).maxmemory, '0');
}

const PARTS = [strings, binary, options, transactions, pipelines, scans, errors, administration];

const value = (number) => `${number}:${'v'.repeat(number % 300)}`;

// Writes until the server is gone and back; the numbers of the writes that were acknowledged.
async function load(redis) {
  let [losses, after, told] = [0, 0, false];
  redis.on('reconnecting', () => { losses += 1; });
  const acknowledged = [];
  for (let first = 0; after < 500; first += 50) {
    const some = Array.from({ length: 50 }, (_, at) => first + at);
    // What is on its way when the connection is lost fails, and may be there or not.
    const answers = await Promise.allSettled(some.map((number) => redis.set(`w:${number}`, value(number))));
    answers.forEach(({ status, value: answer, reason }, at) => {
      assert(status === 'fulfilled' || !(reason instanceof ErrorReply), reason);
      if (status !== 'fulfilled') return;
      assert.strictEqual(answer, 'OK');
      acknowledged.push(some[at]);
      if (losses > 0) after += 1;
    });
    if (!told && acknowledged.length >= 2000) {
      told = true;
      console.log('loaded');
    }
  }
  return acknowledged;
}

async function connect(port, RESP) {
  const redis = createClient({ RESP, socket: { port, host: '127.0.0.1', connectTimeout: 60000 } });
  // A connection that is lost is told as an event, too.
  return redis.on('error', () => {}).connect();
}

async function main(port) {
  for (const protocol of [2, 3]) {
    const [redis, rival] = [await connect(port, protocol), await connect(port, protocol)];
    await redis.flushAll();
    for (const part of PARTS) await part(redis, rival, protocol);
    redis.destroy();
    await rival.close();
    console.log(`RESP${protocol}: ${PARTS.length} parts`);
  }
  const redis = await connect(port, 3);
  await redis.set('kept', every, { expiration: { type: 'EX', value: 1000 } });
  const acknowledged = await load(redis);
  for (const at of acknowledged) assert.strictEqual(await redis.get(`w:${at}`), value(at));
  assert((await redis.withTypeMapping(bytes).get('kept')).equals(every));
  assert((await redis.ttl('kept')) > 0);
  await redis.close();
  console.log(`done: ${acknowledged.length} writes`);
}

main(Number(process.argv[2])).catch((error) => {
  console.error(String(error.stack).slice(0, 2000));
  process.exit(1);
});
