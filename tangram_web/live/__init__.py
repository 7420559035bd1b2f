"""Live pages: journal entries folded into small frames, and the websocket that sends them."""
