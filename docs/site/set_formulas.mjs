// Set every formula of the built pages by KaTeX: `node set_formulas.mjs HTML FOLDER`, where FOLDER has
// node_modules with KaTeX in it.
//
// Copies KaTeX's style and fonts beside the pages. A formula that KaTeX refuses fails the build.
import { cpSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";

const [html, modules] = process.argv.slice(2);
const require = createRequire(join(resolve(modules), "package.json"));
const katex = require("katex");
const dist = dirname(require.resolve("katex"));
const MARK = /<span class="tex( display)?">([^<]*)<\/span>/g;
const PLAIN = { "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'", "&#39;": "'", "&amp;": "&" };
let set = 0;
let refused = 0;

function page(path) {
  const text = readFileSync(path, "utf8");
  const done = text.replace(MARK, (_, display, escaped) => {
    const tex = escaped.replace(/&(lt|gt|quot|#x27|#39|amp);/g, (found) => PLAIN[found]);
    set += 1;
    try {
      return katex.renderToString(tex, { displayMode: Boolean(display), strict: "error" });
    } catch (error) {
      refused += 1;
      console.error(`${path}: ${error.message}`);
      return tex;
    }
  });
  if (done !== text) {
    const root = "../".repeat(path.slice(html.length + 1).split("/").length - 1);
    const link = `<link rel="stylesheet" href="${root}_static/katex/katex.min.css" />`;
    writeFileSync(path, done.replace("</head>", `${link}</head>`));
  }
}

for (const entry of readdirSync(html, { recursive: true })) {
  if (entry.endsWith(".html")) page(join(html, entry));
}
const styles = join(html, "_static", "katex");
mkdirSync(join(styles, "fonts"), { recursive: true });
cpSync(join(dist, "katex.min.css"), join(styles, "katex.min.css"));
for (const font of readdirSync(join(dist, "fonts"))) {
  if (font.endsWith(".woff2")) cpSync(join(dist, "fonts", font), join(styles, "fonts", font));
}
console.log(`${set} formulas set`);
process.exit(refused ? 1 : 0);
