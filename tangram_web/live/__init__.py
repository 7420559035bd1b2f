"""The live page's data: journal entries folded into small frames, and one websocket for them."""
