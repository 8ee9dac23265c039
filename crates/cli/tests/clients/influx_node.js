// The client `influx` of npm, unmodified, against a server with a password: PORT USER PASSWORD.
'use strict';
const assert = require('assert');
const { FieldType, InfluxDB, Precision } = require('influx');

const POINTS = 2000;

async function main(port, username, password) {
  const schema = [{
    measurement: 'cpu',
    fields: { load: FieldType.FLOAT, count: FieldType.INTEGER, text: FieldType.STRING, even: FieldType.BOOLEAN },
    tags: ['host'],
  }];
  const influx = new InfluxDB({ host: '127.0.0.1', port, username, password, database: 'node', schema });
  const [there] = await influx.ping(60000);
  assert.deepStrictEqual([there.online, there.version], [true, '1.6.7']);
  await influx.createDatabase('node');
  assert((await influx.getDatabaseNames()).includes('node'));

  const points = [];
  for (let at = 0; at < POINTS; at += 1) {
    points.push({
      measurement: 'cpu',
      tags: { host: at % 2 ? 'a b' : 'c,=' },
      fields: { load: at / 4, count: at, text: `"${at}", =`, even: at % 2 === 0 },
      timestamp: 1500000000 + at,
    });
  }
  await influx.writePoints(points, { precision: Precision.Seconds });
  // What is written again is there once.
  await influx.writePoints(points.slice(0, 500), { precision: Precision.Seconds });

  const rows = await influx.query('SELECT * FROM cpu', { precision: Precision.Seconds });
  assert.strictEqual(rows.length, POINTS);
  points.forEach((point, at) => {
    const row = rows[at];
    assert.strictEqual(row.time.getTime(), point.timestamp * 1000);
    assert.strictEqual(row.host, point.tags.host);
    Object.entries(point.fields).forEach(([name, value]) => assert.strictEqual(row[name], value));
  });
  const precise = await influx.query('SELECT last(load) FROM cpu');
  assert.strictEqual(precise[0].time.getNanoTime(), '1500001999000000000');
  const groups = await influx.query('SELECT mean(load), count(load) FROM cpu GROUP BY host');
  assert.deepStrictEqual(groups.groups().map(({ tags, rows: [row] }) => [tags.host, row.count]),
    [['a b', 1000], ['c,=', 1000]]);
  const both = await influx.query(['SELECT max(count) FROM cpu', 'SELECT min(count) FROM cpu']);
  assert.deepStrictEqual([both[0][0].max, both[1][0].min], [POINTS - 1, 0]);

  assert.deepStrictEqual(await influx.getMeasurements(), ['cpu']);
  assert.deepStrictEqual((await influx.getSeries()).length, 2);
  await influx.createRetentionPolicy('week', { duration: '7d', replication: 1, isDefault: false });
  const policies = await influx.showRetentionPolicies();
  assert.deepStrictEqual(policies.map(({ name }) => name).sort(), ['autogen', 'week']);
  await influx.alterRetentionPolicy('week', { duration: '14d', replication: 1, isDefault: false });
  await influx.dropRetentionPolicy('week');

  await assert.rejects(influx.query('SELECT'), /error parsing query/);
  const stranger = new InfluxDB({ host: '127.0.0.1', port, username, password: 'wrong' });
  await assert.rejects(stranger.getDatabaseNames(), /authorization failed/);
  const plain = new InfluxDB({ host: '127.0.0.1', port, username, password, database: 'node' });
  await assert.rejects(plain.writePoints([{ measurement: 'cpu', fields: { load: 'text' } }]), /field type conflict/);

  await influx.dropMeasurement('cpu');
  assert.deepStrictEqual(await influx.getMeasurements(), []);
  await influx.dropDatabase('node');
}

main(Number(process.argv[2]), process.argv[3], process.argv[4])
  .then(() => console.log('done'))
  .catch((error) => {
    console.error(String(error.stack).slice(0, 2000));
    process.exit(1);
  });
