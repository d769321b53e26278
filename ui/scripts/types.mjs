// Makes src/api/schema.gen.ts from openapi.json (`python -m server.openapi > ui/openapi.json`).
//
// Neither file is committed. Without openapi.json the UI still builds: calls are then not checked against the server, and
// a line says so.
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import openapiTS, { astToString } from 'openapi-typescript';

const source = new URL('../openapi.json', import.meta.url);
const target = new URL('../src/api/schema.gen.ts', import.meta.url);

const UNCHECKED = `// No openapi.json was found: any call is allowed.
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type paths = any;
`;

let text;
if (existsSync(source)) {
  text = `// Made by scripts/types.mjs; do not edit.\n${astToString(await openapiTS(source))}`;
} else {
  console.log('ui/openapi.json is missing: API calls are not type-checked (python -m server.openapi > ui/openapi.json)');
  text = UNCHECKED;
}
// An unchanged file keeps its time, so that the dev server does not reload for nothing.
if (!existsSync(target) || readFileSync(target, 'utf8') !== text) writeFileSync(target, text);
