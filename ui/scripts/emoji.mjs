// Makes a small, real, captioned picture set: 48 emoji that differ in colour and outline.
//
//   node scripts/emoji.mjs OUTDIR
//
// writes OUTDIR/NAME.png (64 x 64, RGBA, unmodified) with its caption in OUTDIR/NAME.txt, and
// OUTDIR/ATTRIBUTION.md. The same input gives the same files; nothing else in OUTDIR is touched.
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';

const SIZE = 64;

// Short names, as emoji-datasource spells them. Chosen by eye: no two share both colour and outline.
const CHOSEN = [
  // food
  'apple', 'banana', 'grapes', 'watermelon', 'carrot', 'broccoli', 'pizza', 'hamburger', 'doughnut', 'avocado',
  // animals
  'frog', 'pig', 'penguin', 'octopus', 'tropical_fish', 'butterfly', 'turtle', 'owl',
  // faces
  'grinning', 'rage', 'nauseated_face', 'robot_face', 'alien', 'ghost', 'jack_o_lantern',
  // objects
  'umbrella', 'key', 'guitar', 'crown', 'gem', 'gift', 'balloon', 'bulb', 'hourglass', 'camera',
  // places and nature
  'house', 'volcano', 'desert_island', 'rainbow', 'sunflower', 'cactus', 'snowman', 'rocket', 'sailboat',
  // sports
  'soccer', 'basketball', '8ball', 'dart',
];

const ATTRIBUTION = `# Where these pictures come from

Twemoji graphics, Copyright Twitter, Inc and other contributors,
licensed under CC-BY 4.0 (https://creativecommons.org/licenses/by/4.0/).

Taken from the npm package emoji-datasource-twitter 16.0.0. The PNG files are unmodified;
each caption is the emoji's Unicode name in lower case.
`;

/** "SLICE OF PIZZA" -> "slice of pizza"; commas would read as two captions to some trainers. */
const caption = (name) => name.toLowerCase().replaceAll(',', '').replaceAll('-', ' ').trim();

/** Width and height from a PNG's header. */
function pngSize(path) {
  const head = readFileSync(path).subarray(0, 24);
  return [head.readUInt32BE(16), head.readUInt32BE(20)];
}

function main(outDir) {
  const require = createRequire(import.meta.url);
  const root = dirname(require.resolve('emoji-datasource-twitter/package.json'));
  const known = JSON.parse(readFileSync(join(root, 'emoji.json'), 'utf8'));
  mkdirSync(outDir, { recursive: true });
  const seen = new Set();
  for (const short of CHOSEN) {
    const emoji = known.find((entry) => entry.short_names.includes(short));
    if (!emoji) throw new Error(`emoji '${short}' is not in emoji-datasource-twitter`);
    const picture = join(root, 'img/twitter/64', emoji.image);
    const [width, height] = pngSize(picture);
    if (width !== SIZE || height !== SIZE) throw new Error(`${emoji.image} is ${width} x ${height}, not ${SIZE} x ${SIZE}`);
    const text = caption(emoji.name);
    if (seen.has(text)) throw new Error(`two emoji share the caption '${text}'`);
    seen.add(text);
    const name = text.replaceAll(' ', '-');
    copyFileSync(picture, join(outDir, `${name}.png`));
    writeFileSync(join(outDir, `${name}.txt`), `${text}\n`);
  }
  writeFileSync(join(outDir, 'ATTRIBUTION.md'), ATTRIBUTION);
  console.log(`${seen.size} pictures with captions in ${outDir}`);
}

if (process.argv.length !== 3) {
  console.error('usage: node scripts/emoji.mjs OUTDIR');
  process.exit(2);
}
main(process.argv[2]);
