// Search on pages opened from a disk. Browsers start no worker there, so a hidden frame stands in for one: it runs the
// worker's script, and passes messages to and fro. The theme's script asks for IFrameWorker by name.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      const start = () => {
        document.body.append(this.frame);
        const inside = this.frame.contentWindow;
        inside.document.open();
        inside.document.close();
        inside.IFrameWorker = IFrameWorker;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        inside.importScripts = (...addresses) =>
          addresses.reduce((earlier, each) => earlier.then(() => this.load(each)), Promise.resolve());
        this.load(address).then(() => {
          const waiting = this.waiting;
          this.waiting = null;
          waiting.forEach((data) => this.send(data));
        });
      };
      if (document.body) start();
      else document.addEventListener("DOMContentLoaded", start);
    }

    // Resolves when a script has run in the frame.
    load(address) {
      return new Promise((done, failed) => {
        const script = this.frame.contentDocument.createElement("script");
        script.onload = done;
        script.onerror = failed;
        script.src = String(address);
        this.frame.contentDocument.body.append(script);
      });
    }

    send(data) {
      this.frame.contentWindow.dispatchEvent(new this.frame.contentWindow.MessageEvent("message", { data }));
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.send(data);
    }
  }

  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
}
