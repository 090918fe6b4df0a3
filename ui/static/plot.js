// A dibs-plot draws the numbers of its attribute, in a tree of its own, which updates of the page leave alone.
"use strict";
const sheet = new CSSStyleSheet();
sheet.replaceSync(".u-wrap { position: relative; } .u-over, .u-under, .u-axis, .u-legend { position: absolute; } canvas { display: block; width: 100%; height: 100%; }");
customElements.define("dibs-plot", class extends HTMLElement {
  static observedAttributes = ["points"];
  connectedCallback() { this.draw(); }
  attributeChangedCallback() { this.draw(); }
  draw() {
    if (!this.isConnected) return;
    const root = this.shadowRoot || this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [sheet];
    if (!root.firstChild) root.append(document.createElement("div"));
    const style = getComputedStyle(this);
    const grid = { stroke: style.borderTopColor, width: 1 };
    const axis = { stroke: style.color, grid, ticks: grid };
    this.plot?.destroy();
    this.plot = new uPlot({
      width: this.clientWidth, height: 140, legend: { show: false }, cursor: { show: false }, tzDate: (s) => uPlot.tzDate(new Date(s * 1e3), "Etc/UTC"),
      scales: { y: { range: (u, least, most) => [0, Math.max(most || 0, 1)] } },
      axes: [{ ...axis, size: 30, values: [[1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] }, { ...axis, size: 60 }],
      series: [{}, { stroke: style.outlineColor, width: 2, points: { size: 5 } }],
    }, JSON.parse(this.getAttribute("points")), root.firstChild);
  }
});
