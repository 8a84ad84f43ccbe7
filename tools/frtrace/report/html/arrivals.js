function arrivalsSection() {}
