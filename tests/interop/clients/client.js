// Publishes payloads to a queue, or consumes them, as a service in Node.js does that knows nothing of windlass.
//
//     client.js publish URI QUEUE HOW         one payload in JSON per line of standard input
//     client.js consume URI QUEUE HOW COUNT   one payload in JSON per line of standard output
//
// HOW is `always` (lz4 blocks behind their length, no label), `frame` or `label` (a frame, or a block, with its label) or
// `plain`.

const amqp = require('amqplib');
const lz4 = require('lz4-napi');

const LABELS = { label: 'lz4', frame: 'lz4-frame' };

async function pack(body, how) {
  if (how === 'plain') return body;
  return how === 'frame' ? lz4.compressFrame(body) : lz4.compress(body);
}

async function unpack(body, label, how) {
  if (how === 'always' || label === 'lz4') return lz4.uncompress(body);
  if (label === 'lz4-frame') return lz4.decompressFrame(body);
  if (label !== undefined) throw new Error(`an unknown label: ${label}`);
  return body;
}

async function publish(connection, queue, how) {
  const channel = await connection.createConfirmChannel();
  const lines = require('fs').readFileSync(0, 'utf8').split('\n').filter((line) => line !== '');
  for (const line of lines) {
    const body = await pack(Buffer.from(JSON.stringify(JSON.parse(line))), how);
    const options = { contentType: 'application/json', contentEncoding: LABELS[how], mandatory: true };
    channel.sendToQueue(queue, body, options);
  }
  await channel.waitForConfirms();
}

async function consume(connection, queue, how, count) {
  const channel = await connection.createChannel();
  await channel.prefetch(1);
  await new Promise((resolve, reject) => {
    const handle = async (message) => {
      const { contentEncoding, contentType } = message.properties;
      if (contentType !== 'application/json') throw new Error(`the content type ${contentType}`);
      const payload = JSON.parse(await unpack(message.content, contentEncoding, how));
      process.stdout.write(`${JSON.stringify({ payload, label: contentEncoding ?? null })}\n`);
      channel.ack(message);
      count -= 1;
      if (count === 0) resolve();
    };
    channel.consume(queue, (message) => handle(message).catch(reject)).catch(reject);
  });
  await channel.close();
}

async function main([verb, uri, queue, how, count]) {
  const connection = await amqp.connect(uri);
  await (verb === 'publish' ? publish(connection, queue, how) : consume(connection, queue, how, Number(count)));
  await connection.close();
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
