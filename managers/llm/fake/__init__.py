"""Language-model engines without a GPU: a model of one worker in virtual time, and servers that answer at its pace."""
