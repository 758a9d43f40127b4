// Search runs in a worker, which browsers refuse to pages opened from a file: there it runs in a frame.
window.IFrameWorker = class extends EventTarget {
  constructor(url) {
    super();
    this.onmessage = this.onerror = null;
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.appendChild(frame);
    const inside = frame.contentDocument;
    inside.open();
    inside.write(
      '<!doctype html><script>postMessage = parent.postMessage.bind(parent); importScripts = (...urls) => ' +
      'urls.reduce((before, url) => before.then(() => new Promise((done, failed) => { ' +
      'const script = document.createElement("script"); script.src = url; script.onload = done; ' +
      'script.onerror = failed; document.body.appendChild(script); })), Promise.resolve());<\/script>' +
      '<script src="' + url + '"><\/script>');
    inside.close();
    this.postMessage = (data) => {
      const send = () => frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
      if (inside.readyState === "complete") send(); else frame.addEventListener("load", send, { once: true });
    };
    this.terminate = () => frame.remove();
    window.addEventListener("message", (event) => {
      if (event.source !== frame.contentWindow) return;
      const message = new MessageEvent("message", { data: event.data });
      this.dispatchEvent(message);
      if (this.onmessage) this.onmessage(message);
    });
  }
};
if (location.protocol === "file:") window.Worker = window.IFrameWorker;
