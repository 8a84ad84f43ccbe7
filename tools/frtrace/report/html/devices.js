function devicesSection() {}
