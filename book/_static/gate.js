// The gate, to play with: three sliders move the picture of the chapter "The gate".
// The page holds a still picture. This script puts the moving one beside it and gives the figure the class `gate-live`,
// on which gate.css hides the still one on screens. It draws only when a slider moves: there is no animation.
(() => {
  "use strict";

  // What is shown. The numbers are those of the chapter's formulas, and the tests compare them with the package.

  const sigmoid = z => 1 / (1 + Math.exp(-z));

  // (1 - sigmoid(b))^L, where 1 - sigmoid(b) = 1 / (1 + e^b)
  const carried = (bias, depth) => Math.pow(1 + Math.exp(bias), -depth);

  // The mean of sigmoid(z) for z normal with mean b and standard deviation s: a sum over a fine grid of +-8 s.
  function meanGate(bias, spread) {
    let sum = 0, weights = 0;
    for (let i = -160; i <= 160; i++) {
      const weight = Math.exp(-i * i / 800);
      sum += weight * sigmoid(bias + spread * i / 20);
      weights += weight;
    }
    return sum / weights;
  }

  // How it is written: 0.119, 7.9 %, 1.2 × 10⁻⁵ %.

  const superscript = n => String(n).replace(/./g, c => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);

  function short(value) {
    if (value >= 1e-3) return value.toPrecision(value >= 99.95 ? 4 : 3);
    const [mantissa, exponent] = value.toExponential(1).split("e");
    return `${mantissa}\u00a0×\u00a010${superscript(Number(exponent))}`;
  }

  const percent = share => `${short(100 * share)}\u00a0%`;

  const signed = value => String(value).replace("-", "\u2212");

  // A small kit to make elements with. Geometry is set by attributes: a strict content policy allows no inline style.

  function make(parent, name, attributes = {}, text = "") {
    const inSvg = name === "svg" || parent.namespaceURI.endsWith("svg");
    const element = inSvg
      ? document.createElementNS("http://www.w3.org/2000/svg", name)
      : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text) element.append(text);
    parent.append(element);
    return element;
  }

  const path = points => "M" + points.map(([x, y]) => `${x.toFixed(2)} ${y.toFixed(2)}`).join("L");

  const range = (from, to, step) => Array.from({ length: Math.round((to - from) / step) + 1 }, (_, i) => from + i * step);

  // One panel: axes, grid and labels of `xTicks` and `yTicks`, pairs of a place and its label, under the maps x and y.

  const BOX = { left: 46, right: 310, top: 26, bottom: 196 };

  const across = (from, to) => value => BOX.left + (value - from) / (to - from) * (BOX.right - BOX.left);

  const upward = (from, to) => value => BOX.bottom - (value - from) / (to - from) * (BOX.bottom - BOX.top);

  function panel(parent, label, x, y, xTicks, yTicks, xTitle, yTitle) {
    const svg = make(parent, "svg", { viewBox: "0 0 322 236", role: "img", "aria-label": label });
    for (const [value, tick] of xTicks) {
      make(svg, "line", { class: "grid", x1: x(value), x2: x(value), y1: BOX.top, y2: BOX.bottom });
      make(svg, "text", { x: x(value), y: BOX.bottom + 16, "text-anchor": "middle" }, tick);
    }
    for (const [value, tick] of yTicks) {
      make(svg, "line", { class: "grid", x1: BOX.left, x2: BOX.right, y1: y(value), y2: y(value) });
      make(svg, "text", { x: BOX.left - 6, y: y(value) + 4, "text-anchor": "end" }, tick);
    }
    make(svg, "path", { class: "axis", d: path([[BOX.left, BOX.top], [BOX.left, BOX.bottom], [BOX.right, BOX.bottom]]) });
    make(svg, "text", { x: (BOX.left + BOX.right) / 2, y: BOX.bottom + 34, "text-anchor": "middle" }, xTitle);
    make(svg, "text", { x: 4, y: 13 }, yTitle);
    return svg;
  }

  function start(figure) {
    const widget = document.createElement("div");
    widget.className = "gate-widget";

    const panels = make(widget, "div", { class: "gate-panels" });
    const zs = range(-10, 4, 0.1);
    const gateX = across(-10, 4), gateY = upward(0, 1);
    const left = panel(
      panels, "The sigmoid, and on it the gate at the chosen bias", gateX, gateY,
      [-10, -8, -6, -4, -2, 0, 2, 4].map(z => [z, signed(z)]), [0, 0.5, 1].map(t => [t, String(t)]),
      "pre-activation z", "gate T",
    );
    const spreadOnCurve = make(left, "path", { class: "spread range" });
    make(left, "path", { class: "line", d: path(zs.map(z => [gateX(z), gateY(sigmoid(z))])) });
    const gateDot = make(left, "circle", { class: "dot", r: 6 });

    // The right panel shows powers of ten down to FLOOR; a line that falls below it leaves through the floor.
    const FLOOR = -10, DEEPEST = 100;
    const carryX = across(0, DEEPEST), carryY = upward(FLOOR, 0);
    const right = panel(
      panels, "What is carried, on a logarithmic axis, against the number of blocks", carryX, carryY,
      [0, 25, 50, 75, 100].map(l => [l, String(l)]), [0, -2, -4, -6, -8, -10].map(e => [e, e ? `10${superscript(e)}` : "1"]),
      "block", "carried",
    );
    const beyond = make(right, "path", { class: "faint" });
    const within = make(right, "path", { class: "line" });
    const withSpread = make(right, "path", { class: "spread" });
    const carryDot = make(right, "circle", { class: "dot", r: 6 });

    // A straight line from (a, a * slope) to (z, z * slope) in powers of ten, cut where it meets the floor.
    function fall(slope, from, to) {
      const deepest = slope < 0 ? Math.min(to, FLOOR / slope) : to;
      return from > deepest ? "" : path([from, deepest].map(l => [carryX(l), carryY(l * slope)]));
    }

    const output = document.createElement("output");
    const sliders = make(widget, "div", { class: "gate-sliders" });
    function slider(id, label, min, max, step, value) {
      const box = make(sliders, "div");
      const caption = make(box, "label", { for: id }, label);
      const shown = make(caption, "span", { class: "value" });
      const input = make(box, "input", { id, type: "range", min, max, step, value });
      const update = () => { shown.textContent = ` ${signed(input.value)}`; draw(); };
      input.addEventListener("input", update);
      return { input, update };
    }
    const bias = slider("gate-bias", "gate bias b =", -10, 2, 0.1, -2);
    const depth = slider("gate-depth", "blocks L =", 1, DEEPEST, 1, 20);
    const spread = slider("gate-spread", "spread of z, s =", 0, 2, 0.05, 0);
    output.setAttribute("for", "gate-bias gate-depth gate-spread");
    widget.append(output);

    // A number in the sentence: what is read is rounded, the attribute `value` is not.
    const number = (name, value, text) => make(output, "data", { class: name, value }, text);

    function draw() {
      const [b, L, s] = [bias, depth, spread].map(each => Number(each.input.value));
      const T = sigmoid(b), meanT = meanGate(b, s);
      const slope = Math.log10(carried(b, 1));

      gateDot.setAttribute("cx", gateX(b));
      gateDot.setAttribute("cy", gateY(T));
      const near = range(Math.max(b - s, -10), Math.min(b + s, 4), s / 20 || 1);
      spreadOnCurve.setAttribute("d", s ? path(near.map(z => [gateX(z), gateY(sigmoid(z))])) : "");

      beyond.setAttribute("d", fall(slope, L, DEEPEST));
      within.setAttribute("d", fall(slope, 0, L));
      withSpread.setAttribute("d", s ? fall(Math.log10(1 - meanT), 0, L) : "");
      carryDot.setAttribute("cx", carryX(L));
      carryDot.setAttribute("cy", carryY(L * slope));
      carryDot.setAttribute("visibility", L * slope < FLOOR ? "hidden" : "visible");

      output.textContent = "T = ";
      number("gate", T, short(T));
      output.append(`, carried through ${L} block${L > 1 ? "s" : ""}: `);
      number("carried", carried(b, L), percent(carried(b, L)));
      output.append(".");
      if (!s) return;
      output.append(" With the spread, the mean of T is ");
      number("mean-gate", meanT, short(meanT));
      output.append(", and the mean carried: ");
      number("mean-carried", Math.pow(1 - meanT, L), percent(Math.pow(1 - meanT, L)));
      output.append(".");
    }

    for (const each of [bias, depth, spread]) each.update();
    figure.querySelector("figcaption").before(widget);
    figure.classList.add("gate-live");
  }

  const still = document.getElementById("fig-gate-picture");
  if (still) start(still);
})();
