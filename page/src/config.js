// The text of a config.json as a model that is written out: Class(key=value, ...), in Python's words.
const LEFT_OUT = new Set(["architectures", "transformers_version", "torch_dtype", "dtype", "auto_map", "_name_or_path", "use_cache", "initializer_range"]);
const LONGEST = 4000;

export function writtenOut(text) {
  let config;
  try {
    config = JSON.parse(text);
  } catch (error) {
    throw new Error(`that is no JSON (${error.message}); paste or drop the text of a config.json`);
  }
  const family = config?.architectures?.[0];
  if (!family) throw new Error("the config names no class under \"architectures\"; add it, such as [\"LlamaForCausalLM\"]");
  const keys = Object.entries(config).filter(([key]) => /^[a-z]\w*$/i.test(key) && !LEFT_OUT.has(key) && !/_token_id$/.test(key));
  const model = `${family}(${keys.map(([key, value]) => `${key}=${python(value)}`).join(", ")})`;
  if (model.length > LONGEST) throw new Error(`the config has ${model.length} characters; at most ${LONGEST} can stand in a link: leave out what does not shape the model`);
  return model;
}

function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${python(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}
