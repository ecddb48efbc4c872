// Browsers start no worker for a page that was opened from disk. There, a hidden frame runs the worker's script instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.send = new Promise(ready => {
        const script = inside.document.createElement("script")
        script.src = new URL(url, location)
        script.onload = () => ready(data => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
        inside.document.body.append(script)
      })
    }

    postMessage(data) {
      this.send.then(send => send(data))
    }
  }
}
