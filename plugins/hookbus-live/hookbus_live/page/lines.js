// Draws the lines of charts that have many, in a thread beside the page, which stays smooth.

const canvas = new OffscreenCanvas(1, 1);
const pen = canvas.getContext("2d");
const FEW_POINTS = 40;

// Draw a job: {x, lines, colours, width, height, low, high, bottom, top, log, ratio}.
function draw({ x, lines, colours, width, height, low, high, bottom, top, log, ratio }) {
  const level = log ? Math.log10 : Number;
  const [floor, ceiling] = [level(bottom), level(top)];
  const across = x.map((value) => ((value - low) / (high - low)) * width);
  [canvas.width, canvas.height] = [width, height]; // which clears it
  pen.lineWidth = ratio;
  pen.lineJoin = "round";
  lines.forEach((line, at) => {
    pen.strokeStyle = pen.fillStyle = colours[at];
    pen.beginPath();
    const points = [];
    for (let n = 0; n < line.length; n += 1) {
      const value = line[n];
      if (Number.isNaN(value) || (log && value <= 0)) continue;
      const down = ((ceiling - level(value)) / (ceiling - floor)) * height;
      pen.lineTo(across[n], down);
      if (line.length <= FEW_POINTS) points.push([across[n], down]);
    }
    pen.stroke();
    for (const [right, down] of points) pen.fillRect(right - 2 * ratio, down - 2 * ratio, 4 * ratio, 4 * ratio);
  });
  return canvas.transferToImageBitmap();
}

addEventListener("message", ({ data: { chart, job } }) => {
  const bitmap = draw(job);
  postMessage({ chart, bitmap }, [bitmap]);
});
