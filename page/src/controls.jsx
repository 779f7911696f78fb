// Controls from data. Every value is the text that stands in the URL.
import {short} from "./numbers.js";

export function Controls({view, state, change, only}) {
  return (
    <form className="controls" aria-label="Controls" onSubmit={(event) => event.preventDefault()}>
      {view.controls.map((control) => (
        <Control
          key={control.name}
          control={control}
          value={state[control.name]}
          fixed={only !== undefined && control.name !== only}
          change={(value) => change(control.name, value)}
        />
      ))}
    </form>
  );
}

function Control({control, value, change, fixed}) {
  const id = `control-${control.name}`;
  const shown = control.kind === "slider" ? readable(value, control.unit) : "";
  return (
    <div className={`control ${control.kind}`}>
      <label htmlFor={id}>
        {control.label}
        {shown && <output htmlFor={id}>{shown}</output>}
      </label>
      <Input id={id} control={control} value={value} change={change} fixed={fixed} />
      {control.about && <p className="about">{control.about}</p>}
    </div>
  );
}

function readable(value, unit) {
  const number = Number(value);
  if (Number.isNaN(number)) return value;
  const power = Math.log2(number);
  if (Number.isInteger(power) && power >= 14) return `${2 ** (power % 10)} ${["", "Ki", "Mi", "Gi", "Ti"][Math.floor(power / 10)]} ${unit}`;
  const own = ["bytes", "bytes/s", "s"].includes(unit);
  return short(number, own ? unit : "") + (unit && !own ? ` ${unit}` : "");
}

function Input({id, control, value, change, fixed}) {
  const common = {id, name: control.name, disabled: fixed};
  switch (control.kind) {
    case "slider":
      return (
        <input
          {...common}
          type="range"
          min={0}
          max={control.values.length - 1}
          step={1}
          value={Math.max(0, control.values.indexOf(value))}
          aria-valuetext={readable(value, control.unit)}
          onChange={(event) => change(control.values[Number(event.target.value)])}
        />
      );
    case "choice":
      return (
        <select {...common} value={value} onChange={(event) => change(event.target.value)}>
          {control.values.map((one) => <option key={one}>{one}</option>)}
        </select>
      );
    case "flag":
      return (
        <input
          {...common}
          type="checkbox"
          checked={value === "yes"}
          onChange={(event) => change(event.target.checked ? "yes" : "no")}
        />
      );
    default:
      return (
        <input
          {...common}
          type={control.kind === "number" ? "number" : "text"}
          step="any"
          value={value}
          spellCheck={false}
          onChange={(event) => change(event.target.value)}
        />
      );
  }
}
