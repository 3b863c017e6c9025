// Two backends that decode each segment: Express, and the URL class with the path of a request.
import {createServer} from 'node:http';
import express from 'express';

const app = express();
// Without a length, an answer over HTTP/1.0 ends with its connection.
const send = (response, name) => response.setHeader('Content-Length', name.length).end(name);
const say = (name) => (_, response) => send(response, name);
app.post('/login', say('login'));
app.all('/account/:id', say('account'));
app.use('/account', say('account'));
app.get('/health', say('health'));
app.use(say('rest'));

function read(request) {
  const {pathname} = new URL(request.url, 'http://backend');
  const names = pathname.split('/').map(decodeURIComponent).filter(Boolean);
  if (request.method === 'POST' && names.join('/') === 'login') return 'login';
  if (names[0] === 'account') return 'account';
  return request.method === 'GET' && names.join('/') === 'health' ? 'health' : 'rest';
}

const urls = (request, response) => {
  try {
    send(response, read(request));
  } catch {
    response.writeHead(400).end();
  }
};

const ports = [app, urls].map((handler) => {
  const server = createServer(handler);
  return new Promise((listens) => server.listen(0, '127.0.0.1', () => listens(server.address().port)));
});
console.log((await Promise.all(ports)).join(' '));
process.stdin.resume().on('end', () => process.exit());
