function frontiersSection() {}
