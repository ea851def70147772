// A member of a Kafka group, of kafkajs, that prints JSON lines as tests/interop/go_kafka does, and ends at "stop".
//
//     node main.js BROKER TOPIC GROUP
const { createRequire } = require('module');
const { Kafka, logLevel } = createRequire(process.cwd() + '/')('kafkajs');

const [broker, topic, group] = process.argv.slice(2);
const consumer = new Kafka({ brokers: [broker], logLevel: logLevel.NOTHING }).consumer({ groupId: group });
const say = (line) => process.stdout.write(JSON.stringify(line) + '\n');

consumer.on(consumer.events.GROUP_JOIN, ({ payload }) =>
  say({ event: 'owned', partitions: payload.memberAssignment[topic] || [] }));

async function main() {
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ partition, message }) =>
      say({ event: 'record', partition, value: message.value.toString(), at_ms: Date.now() }),
  });
}

process.stdin.on('data', async (text) => {
  if (!text.toString().includes('stop')) return;
  await consumer.disconnect();
  say({ event: 'stopped' });
  process.exit(0);
});
main();
