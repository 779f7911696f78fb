// Controls from data. Every value is the text that stands in the URL. A slider has positions and a box
// beside it, which takes every number between its ends.
import {useEffect, useId, useState} from "react";
import {short, sizeOf, typed as typedAs} from "./numbers.js";
import {writtenOut} from "./config.js";
import {give, gives} from "./source.js";

export function Controls({view, state, change, only}) {
  const groups = [...new Set(view.controls.map(({group}) => group))];
  const own = (group) => view.controls.filter((control) => control.group === group).map((control) => (
    <Control
      key={control.name}
      control={control}
      value={state[control.name]}
      size={sizeOf(control, state[control.name], state)}
      fixed={only !== undefined && control.name !== only}
      change={(value, dragged) => change(control.name, value, dragged)}
    />
  ));
  // The controls of what is to be done are open: "To train it" where a choice is "train it".
  const chosen = (group) => view.controls.some(({kind, name}) => kind === "choice" && group === `To ${state[name]}`);
  return (
    <form className="controls" aria-label="Controls" onSubmit={(event) => event.preventDefault()}>
      {groups.map((group) => (group ? <Folded key={group} title={group} changed={chosen(group) || view.controls.some((c) => c.group === group && state[c.name] !== c.default)}>{own(group)}</Folded> : own(group)))}
    </form>
  );
}

function Folded({title, changed, children}) {
  const [open, setOpen] = useState(changed);
  useEffect(() => { if (changed) setOpen(true); }, [changed]);
  return (
    <details className="group" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{title}</summary>
      {children}
    </details>
  );
}

function Control({control, value, size, change, fixed}) {
  const id = `control-${control.name}`;
  const shown = control.kind === "slider" ? readable(value, size, control) : "";
  return (
    <div className={`control ${control.kind}`}>
      <label htmlFor={id}>
        {control.label}
        {shown && <output htmlFor={id}>{shown}</output>}
      </label>
      <Input id={id} control={control} value={value} size={size} shown={shown} change={change} fixed={fixed} />
      {control.about && <p className="about">{control.about}</p>}
    </div>
  );
}

function readable(value, size, {unit, free}) {
  if (Number.isNaN(size) || !free) return value;
  const power = Math.log2(size);
  if (Number.isInteger(power) && power >= 14) return `${2 ** (power % 10)} ${["", "Ki", "Mi", "Gi", "Ti"][Math.floor(power / 10)]} ${unit}`;
  const own = ["bytes", "bytes/s", "s"].includes(unit);
  return short(size, own ? unit : "") + (unit && !own ? ` ${unit}` : "");
}

// The position nearest to a value, by ratio where that can be.
export function nearest(control, value, wanted) {
  const exact = control.values.indexOf(value);
  if (exact >= 0) return exact;
  const far = (one) => (wanted > 0 && one > 0 ? Math.abs(Math.log(one / wanted)) : Math.abs(one - wanted));
  const all = control.values.map((one) => far(sizeOf(control, one)));
  return Math.max(0, all.indexOf(Math.min(...all)));
}

// Options of a choice, in words where it has those.
const optionsOf = ({values, words}, wanted) => values.map((one, i) => wanted(i) && <option key={one} value={one}>{words[i] ?? one}</option>);

function Input({id, control, value, size, shown, change, fixed}) {
  const common = {id, name: control.name, disabled: fixed};
  switch (control.kind) {
    case "slider":
      return (
        <div className="range">
          <input
            {...common}
            type="range"
            min={0}
            max={control.values.length - 1}
            step={1}
            value={nearest(control, value, size)}
            aria-valuetext={shown}
            onChange={(event) => change(control.values[Number(event.target.value)], true)}
          />
          {control.free && !fixed && <Entry id={`${id}-box`} name={`${control.name}-box`} label={`${control.label}, typed`} value={typedAs(value)} change={change} />}
        </div>
      );
    case "choice":
      return (
        <select {...common} value={value} onChange={(event) => change(event.target.value)}>
          {control.under.length ? [...new Set(control.under)].map((head) => <optgroup key={head} label={head}>{optionsOf(control, (i) => control.under[i] === head)}</optgroup>) : optionsOf(control, () => true)}
        </select>
      );
    case "name":
      return <Name common={common} control={control} value={value} change={change} />;
    case "flag":
      return (
        <input
          {...common}
          type="checkbox"
          checked={value === "yes"}
          onChange={(event) => change(event.target.checked ? "yes" : "no")}
        />
      );
    case "entry":
      return <Entry {...common} value={value} change={change} />;
    default:
      if (control.gives && gives()) return <Given common={common} control={control} value={value} change={change} />;
      return <input {...common} type="text" value={value} spellCheck={false} onChange={(event) => change(event.target.value, true)} />;
  }
}

// A text that counts once it is entered: by Enter, or by leaving the field.
function Entry({id, name, label, value, change, disabled}) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  const enter = () => { if (typed !== value) change(typed.trim()); };
  return (
    <input
      id={id}
      name={name}
      aria-label={label}
      disabled={disabled}
      type="text"
      className="box"
      value={typed}
      spellCheck={false}
      onFocus={(event) => event.target.select()}
      onChange={(event) => setTyped(event.target.value)}
      onBlur={enter}
      onKeyDown={(event) => { if (event.key === "Enter") enter(); }}
    />
  );
}

// A path on the machine of the page's server, or a file or folder of this one, which the server keeps.
const NEEDED = /\.(json|csv|gz)$/; // of a report's folder: what the page reads
function Given({common, control, value, change}) {
  const [said, setSaid] = useState(""), picker = useId();
  const many = control.gives === "folder";
  const send = async (list) => {
    const all = [...list], files = all.length > 1 ? all.filter(({name}) => NEEDED.test(name)) : all;
    if (!files.length) return;
    setSaid("giving it to the page");
    try {
      const folder = all[0].webkitRelativePath?.split("/")[0] || "report";
      const found = await give(many ? safe(folder) : safe(files[0].name), many ? files : [new File(files.slice(0, 1), safe(files[0].name))]);
      setSaid(`${found.name}, kept while this page's server runs`);
      change(found.word);
    } catch (error) {
      setSaid(error.message);
    }
  };
  const dropped = async (event) => {
    event.preventDefault();
    send(await filesOf(event.dataTransfer));
  };
  return (
    <>
      <input {...common} type="text" value={value} spellCheck={false} onChange={(event) => change(event.target.value, true)} onDrop={dropped} onDragOver={(event) => event.preventDefault()} />
      <label className="choose" htmlFor={picker}>{many ? "Choose a folder" : "Choose a file"}
        <input id={picker} name={`${common.name}-file`} type="file" {...(many && {webkitdirectory: "", multiple: true})} onChange={(event) => send(event.target.files)} />
      </label>
      {said && <p className="about" role="status">{said}</p>}
    </>
  );
}

// A name that every machine takes.
const safe = (name) => name.replace(/[^\w.+-]/g, "_").replace(/^[^A-Za-z0-9_]+/, "").slice(-100) || "file";

// What was dropped: files, or those of one folder.
async function filesOf({items, files}) {
  const entry = items[0]?.webkitGetAsEntry?.();
  if (!entry?.isDirectory) return [...files];
  const reader = entry.createReader(), found = [];
  for (;;) {
    const part = await new Promise((done, failed) => reader.readEntries(done, failed));
    if (!part.length) break;
    found.push(...part.filter((one) => one.isFile));
  }
  return Promise.all(found.map((one) => new Promise((done, failed) => one.file(done, failed))));
}

// A name out of those that are known, or another that the library reads: an id, a path; and the text
// of a config.json, pasted or dropped, which becomes a model that is written out.
function Name({common, control, value, change}) {
  const list = useId(), [typed, setTyped] = useState(value), [wrong, setWrong] = useState("");
  useEffect(() => setTyped(value), [value]);
  const enter = (text) => { if (text && text !== value) change(text.trim()); };
  const config = (text) => {
    try {
      const model = writtenOut(text);
      setWrong("");
      setTyped(model);
      change(model);
    } catch (error) {
      setWrong(error.message);
    }
  };
  const pasted = (event) => {
    const text = event.clipboardData.getData("text");
    if (text.trim().startsWith("{")) { event.preventDefault(); config(text); }
  };
  const dropped = async (event) => {
    event.preventDefault();
    const file = event.dataTransfer.files[0];
    config(file ? await file.text() : event.dataTransfer.getData("text"));
  };
  const change_ = (event) => {
    setTyped(event.target.value);
    if (control.values.includes(event.target.value)) enter(event.target.value);
  };
  return (
    <>
      <input
        {...common}
        type="text"
        list={list}
        value={typed}
        spellCheck={false}
        autoComplete="off"
        onFocus={(event) => event.target.select()}
        onChange={change_}
        onBlur={() => enter(typed)}
        onKeyDown={(event) => { if (event.key === "Enter") enter(typed); }}
        onPaste={pasted}
        onDrop={dropped}
        onDragOver={(event) => event.preventDefault()}
      />
      <datalist id={list}>{control.values.map((one) => <option key={one} value={one} />)}</datalist>
      {wrong && <p className="error" role="alert">{wrong}</p>}
    </>
  );
}
