// The script of a file of --html: the animation that stands in the page, played.
import {mountPlayer} from "./player.js";

const data = JSON.parse(document.getElementById("animation").textContent);
const place = document.getElementById("player");
mountPlayer(place, data, {width: Math.min(place.clientWidth, 1000)});
