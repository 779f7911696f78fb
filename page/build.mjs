// Builds the page into the folder that is given: `node build.mjs OUT`.
import {build} from "esbuild";
import {copyFile, mkdir} from "node:fs/promises";

const out = process.argv[2] ?? "../src/shardwise/apps/page/bundle";
await mkdir(out, {recursive: true});
await build({
  entryPoints: {app: "src/main.jsx", player: "src/player_file.js"},
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  jsx: "automatic",
  charset: "utf8",
  legalComments: "inline",
  define: {"process.env.NODE_ENV": '"production"'},
  outdir: out,
  loader: {".css": "css"},
});
await copyFile("src/index.html", `${out}/index.html`);
