"""Problems of the system: one definition of each kind, judged once a second, shown everywhere alike."""
