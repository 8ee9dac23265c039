// ioredis of npm, unmodified, against a server that is killed and opened again in the middle: PORT.
//
// The conversation first, then writes without an end. After the line `loaded` the server may be killed; the client
// comes back by itself, and what was acknowledged is read again. The last line begins with `done`.
'use strict';
const assert = require('assert');
const Redis = require('ioredis');

const every = Buffer.from(Array.from({ length: 256 }, (_, at) => at));

async function strings(redis) {
  assert.strictEqual(await redis.set('greeting', 'hello'), 'OK');
  assert.strictEqual(await redis.get('greeting'), 'hello');
  assert.strictEqual(await redis.get('none'), null);
  assert.strictEqual(await redis.append('greeting', ', world'), 12);
  assert.strictEqual(await redis.getrange('greeting', 0, 4), 'hello');
  assert.strictEqual(await redis.setrange('greeting', 7, 'redis'), 12);
  assert.strictEqual(await redis.strlen('greeting'), 12);
  assert.strictEqual(await redis.mset({ a: 1, b: 2 }), 'OK');
  assert.deepStrictEqual(await redis.mget('a', 'none', 'b'), ['1', null, '2']);
  assert.strictEqual(await redis.incrby('n', 41), 41);
  assert.strictEqual(await redis.decr('n'), 40);
  assert.strictEqual(await redis.incrbyfloat('n', 0.5), '40.5');
  assert.strictEqual(await redis.getdel('a'), '1');
  assert.strictEqual(await redis.exists('a', 'b'), 1);
}

async function binary(redis) {
  await redis.set(every, every);
  assert((await redis.getBuffer(every)).equals(every));
  assert((await redis.keysBuffer('*')).some((key) => key.equals(every)));
  const large = Buffer.alloc(5 << 20, every);
  await redis.set('large', large);
  assert((await redis.getBuffer('large')).equals(large));
}

async function options(redis) {
  assert.strictEqual(await redis.set('k', '1', 'NX'), 'OK');
  assert.strictEqual(await redis.set('k', '2', 'NX'), null);
  assert.strictEqual(await redis.set('absent', '2', 'XX'), null);
  assert.strictEqual(await redis.set('k', '3', 'XX', 'GET'), '1');
  assert.strictEqual(await redis.set('k', '4', 'EX', 100), 'OK');
  assert.strictEqual(await redis.set('k', '5', 'KEEPTTL'), 'OK');
  const ttl = await redis.ttl('k');
  assert(ttl > 0 && ttl <= 100);
  assert.strictEqual(await redis.persist('k'), 1);
  assert.strictEqual(await redis.ttl('k'), -1);
  assert.strictEqual(await redis.pexpire('k', 60000, 'NX'), 1);
  assert.strictEqual(await redis.expire('k', 10, 'GT'), 0);
  assert.strictEqual(await redis.set('brief', 'x', 'PX', 20), 'OK');
  while (await redis.exists('brief'));
  assert.strictEqual(await redis.get('brief'), null);
}

async function transactions(redis, rival) {
  const made = await redis.multi().set('x', 1).incr('x').get('x').exec();
  assert.deepStrictEqual(made, [[null, 'OK'], [null, 2], [null, '2']]);
  await redis.watch('x');
  await rival.set('x', 'changed');
  assert.strictEqual(await redis.multi().set('x', 'mine').exec(), null);
  assert.strictEqual(await redis.get('x'), 'changed');
  await assert.rejects(redis.multi().set('x', 1).call('NONSENSE').exec(), /EXECABORT/);
  assert.strictEqual(await redis.get('x'), 'changed');
}

async function pipelines(redis) {
  const pipeline = redis.pipeline();
  for (let at = 0; at < 3000; at += 1) pipeline.set(`p:${at}`, at).get(`p:${at}`);
  const answers = await pipeline.exec();
  answers.forEach(([error, answer], at) => {
    assert.deepStrictEqual([error, answer], [null, at % 2 ? String((at - 1) / 2) : 'OK']);
  });
  const mixed = await redis.pipeline().set('t', 'x').incr('t').get('t').exec();
  assert.match(mixed[1][0].message, /not an integer/);
  assert.strictEqual(mixed[2][1], 'x');
}

async function scans(redis) {
  const found = new Set();
  for await (const keys of redis.scanStream({ match: 'p:1*', count: 100 })) keys.forEach((key) => found.add(key));
  const expected = Array.from({ length: 3000 }, (_, at) => `p:${at}`).filter((key) => key.startsWith('p:1'));
  assert.deepStrictEqual([...found].sort(), expected.sort());
}

async function errors(redis) {
  await redis.set('text', 'no number');
  await assert.rejects(redis.incr('text'), /ERR value is not an integer or out of range/);
  await assert.rejects(redis.call('NONSENSE'), /ERR unknown command 'NONSENSE'/);
  await assert.rejects(redis.set('text', 'x', 'PX', 0), /ERR invalid expire time in 'set' command/);
  await assert.rejects(redis.rename('none', 'x'), /ERR no such key/);
  assert.strictEqual(await redis.get('text'), 'no number');
}

const PARTS = [strings, binary, options, transactions, pipelines, scans, errors];

const value = (number) => `${number}:${'v'.repeat(number % 300)}`;

// Writes until the server is gone and back; how many writes were acknowledged.
async function load(redis) {
  let losses = 0;
  redis.on('close', () => { losses += 1; });
  let acknowledged = 0;
  let [after, told] = [0, false];
  while (after < 500) {
    const some = Array.from({ length: 50 }, (_, at) => acknowledged + at);
    const answers = await Promise.all(some.map((number) => redis.set(`w:${number}`, value(number))));
    assert(answers.every((answer) => answer === 'OK'));
    acknowledged += some.length;
    if (losses > 0) after += some.length;
    if (!told && acknowledged >= 2000) {
      told = true;
      console.log('loaded');
    }
  }
  return acknowledged;
}

async function main(port) {
  // As it is by default, but for as long as the server takes.
  const options = { port, host: '127.0.0.1', maxRetriesPerRequest: null };
  const [redis, rival] = [new Redis(options), new Redis(options)];
  // A connection that is lost is told as an event, too.
  for (const each of [redis, rival]) each.on('error', () => {});
  await redis.flushall();
  for (const part of PARTS) await part(redis, rival);
  console.log(`RESP2: ${PARTS.length} parts`);

  await redis.set('kept', every, 'EX', 1000);
  const acknowledged = await load(redis);
  for (let at = 0; at < acknowledged; at += 1) assert.strictEqual(await redis.get(`w:${at}`), value(at));
  assert((await redis.getBuffer('kept')).equals(every));
  assert((await redis.ttl('kept')) > 0);
  await redis.quit();
  await rival.quit();
  console.log(`done: ${acknowledged} writes`);
}

main(Number(process.argv[2])).catch((error) => {
  console.error(String(error.stack).slice(0, 2000));
  process.exit(1);
});
